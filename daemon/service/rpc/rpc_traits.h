// RpcTraits: the facts about each kind of request that the service needs, in one place (*_requests.h). The facts are
// its conversion, its method of the core, and its name and facts in the audit log. SubmitRequest() (unary_call.h)
// serves every kind.

#ifndef DAEMON_SERVICE_RPC_RPC_TRAITS_H_
#define DAEMON_SERVICE_RPC_RPC_TRAITS_H_

#include <type_traits>

#include "daemon/core/types/request_traits.h"
#include "daemon/service/audit/audit_facts.h"
#include "google/protobuf/message_lite.h"

namespace berth::service {

// Specialised for each kind of request, with RpcDefaults as the base, and with
//
//   static constexpr const char* kAuditName       the name in the audit log
//   static constexpr auto kMethod                 the member of core::Core
//   static absl::StatusOr<Request> Decode(const Message&, absl::Time now)
//                                                 validates and converts; `now` makes a wait a deadline. Errors:
//                                                 INVALID_FIELD naming the field
//   static void Encode(const Result&, Response*)  converts the result
//   static void AddFacts(const Request&, AuditFacts*)
//   static void AddResultFacts(const Result&, AuditFacts*)
template <typename Request>
struct RpcTraits;

// The members that a kind may leave out.
template <typename Answer>
struct RpcDefaults {
  using Result = Answer;

  // A request without a name is not audited: uses of blocks on streams, and queries of a process about itself.
  static constexpr const char* kAuditName = nullptr;
  // A result without fields has an empty response.
  static void Encode(const Result&, google::protobuf::MessageLite*)
    requires std::is_empty_v<Result>
  {}
  static void AddFacts(const auto&, AuditFacts*) {}
  static void AddResultFacts(const Result&, AuditFacts*) {}
};

template <typename Request>
using RpcDefaultsFor = RpcDefaults<typename core::RequestTraits<Request>::Result>;

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_RPC_TRAITS_H_
