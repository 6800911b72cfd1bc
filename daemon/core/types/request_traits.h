// RequestTraits: the facts about each kind of mutating request that the core needs. Each kind declares them next to its
// request and result (*_types.h), so no file lists all kinds:
//
//   struct FreeRequest { … };
//   // Adds every field but deadlines to a fingerprint: a retry has another deadline.
//   void Payload(auto& add, const FreeRequest& request) { add(request.handle, request.let_go); }
//
//   struct FreeResult {
//     static constexpr size_t kResponseIndex = 3;
//     …
//   };
//   template <typename Archive>
//   void Fields(Archive& archive, FreeResult& value) { … }
//   // Reverts the request when its client forgets it. Returns whether there was something to revert.
//   inline bool Undo(const UndoStep&, const FreeResult&) { return false; }
//
//   template <>
//   struct RequestTraits<FreeRequest> {
//     using Result = FreeResult;
//     static constexpr uint64_t kKind = 4;
//   };
//   using BlockResults = ResultList<AllocateResult, FreeResult, …>;
//
// The ledger stores both numbers, so neither ever changes: `kKind` is a part of the request's fingerprint,
// `kResponseIndex` the result's index in Response. A new kind takes the next number; tests/docs finds a duplicate.

#ifndef DAEMON_CORE_TYPES_REQUEST_TRAITS_H_
#define DAEMON_CORE_TYPES_REQUEST_TRAITS_H_

namespace berth::core {

template <typename Request>
struct RequestTraits;

// The results that one header defines.
template <typename... Results>
struct ResultList {};

// The step that reverts a request (requests/undo_step.h).
struct UndoStep;

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_REQUEST_TRAITS_H_
