#include "daemon/core/types/effects.h"

#include "daemon/core/types/response.h"

namespace berth::core {

AnyEffect::AnyEffect() = default;
AnyEffect::AnyEffect(const AnyEffect& other) = default;
AnyEffect::AnyEffect(AnyEffect&& other) noexcept = default;
AnyEffect& AnyEffect::operator=(const AnyEffect& other) = default;
AnyEffect& AnyEffect::operator=(AnyEffect&& other) noexcept = default;
AnyEffect::~AnyEffect() = default;

// ---- response.h ----------------------------------------------------------------------------------------------

Response::Response() = default;
Response::Response(const Response& other) = default;
Response::Response(Response&& other) noexcept = default;
Response& Response::operator=(const Response& other) = default;
Response& Response::operator=(Response&& other) noexcept = default;
Response::~Response() = default;

}  // namespace berth::core
