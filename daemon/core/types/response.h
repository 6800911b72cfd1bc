// The core's answer to a request.

#ifndef DAEMON_CORE_TYPES_RESPONSE_H_
#define DAEMON_CORE_TYPES_RESPONSE_H_

#include <cstddef>
#include <type_traits>
#include <utility>
#include <variant>

#include "daemon/core/types/block_types.h"
#include "daemon/core/types/budget_types.h"
#include "daemon/core/types/fence_types.h"
#include "daemon/core/types/gang_types.h"
#include "daemon/core/types/module_types.h"
#include "daemon/core/types/permit_types.h"
#include "daemon/core/types/plan_types.h"
#include "daemon/core/types/request_traits.h"
#include "daemon/core/types/session_types.h"

namespace berth::core {
namespace response_internal {

template <typename... As, typename... Bs>
ResultList<As..., Bs...> operator+(ResultList<As...>, ResultList<Bs...>);

// The result with that index; does not compile if there is none.
template <size_t index, typename... Results>
struct At;
template <size_t index, typename First, typename... Rest>
struct At<index, First, Rest...>
    : std::conditional_t<First::kResponseIndex == index, std::type_identity<First>, At<index, Rest...>> {};

template <typename... Results, size_t... indices>
std::variant<typename At<indices, Results...>::type...> InOrder(ResultList<Results...>,
                                                                std::index_sequence<indices...>);
template <typename... Results>
auto ByIndex(ResultList<Results...> results)
    -> decltype(InOrder(results, std::index_sequence_for<Results...>()));

using Results = decltype(PermitResults() + GangResults() + BlockResults() + BudgetResults() + SessionResults() +
                         FenceResults() + PlanResults() + ModuleResults());
using Variant = decltype(ByIndex(Results()));

}  // namespace response_internal

// A variant of all results, each at its kResponseIndex. One source compiles what visits all of them.
struct Response : response_internal::Variant {
  using response_internal::Variant::Variant;
  Response();
  Response(const Response& other);
  Response(Response&& other) noexcept;
  Response& operator=(const Response& other);
  Response& operator=(Response&& other) noexcept;
  ~Response();
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_RESPONSE_H_
