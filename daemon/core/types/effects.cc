#include "daemon/core/types/effects.h"

namespace berth::core {

AnyEffect::AnyEffect() = default;
AnyEffect::AnyEffect(const AnyEffect& other) = default;
AnyEffect::AnyEffect(AnyEffect&& other) noexcept = default;
AnyEffect& AnyEffect::operator=(const AnyEffect& other) = default;
AnyEffect& AnyEffect::operator=(AnyEffect&& other) noexcept = default;
AnyEffect::~AnyEffect() = default;

}  // namespace berth::core
