#include "daemon/service/audit_facts.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace berth::service {
namespace {

using Facts = std::vector<AuditFact>*;

void AddLabel(const std::string& label, Facts facts) {
  if (!label.empty()) facts->emplace_back("request_label", label);
}

void AddItems(const std::vector<core::ReserveItem>& items, Facts facts) {
  if (items.empty()) return;
  facts->emplace_back(
      "reserve", absl::StrJoin(items, ", ", [](std::string* out, const core::ReserveItem& item) {
        absl::StrAppend(out, item.bytes.count(), " on ",
                        item.device_uuid.empty() ? absl::StrCat(item.device) : item.device_uuid);
      }));
}

std::string OwnerOf(const core::Tenant& tenant) {
  return absl::StrCat("uid ", tenant.uid, tenant.container.empty() ? "" : " in ", tenant.container);
}

void AddPermit(const core::AcquireResult& result, Facts facts) {
  facts->emplace_back("permit", absl::StrCat(result.permit.value()));
  facts->emplace_back("acquisition", absl::StrCat(result.acquisition.value()));
  if (result.nested) facts->emplace_back("nested", "true");
  if (result.device.has_value()) facts->emplace_back("device", result.device->uuid);
}

// The facts of each kind of answer that has any.
struct AnswerFacts {
  Facts facts;
  void operator()(const core::AcquireResult& result) const { AddPermit(result, facts); }
  void operator()(const core::GangResult& result) const {
    facts->emplace_back("permits", absl::StrJoin(result.permits, ", ", [](std::string* out, const auto& permit) {
                          absl::StrAppend(out, permit.permit.value());
                        }));
    if (result.reservation.has_value()) {
      facts->emplace_back("reservation", AuditId(result.reservation->id.value()));
    }
  }
  void operator()(const core::ReleaseResult& result) const {
    facts->emplace_back("returned", result.returned ? "true" : "false");
  }
  void operator()(const core::AllocateResult& result) const {
    facts->emplace_back("block", AuditId(result.block.handle.block.value()));
    facts->emplace_back("import", absl::StrCat(result.import.value()));
  }
  void operator()(const core::ImportResult& result) const {
    facts->emplace_back("block", AuditId(result.block.handle.block.value()));
    facts->emplace_back("import", absl::StrCat(result.import.value()));
  }
  void operator()(const core::ReserveResult& result) const {
    facts->emplace_back("reservation", AuditId(result.reservation.id.value()));
  }
  void operator()(const core::ObtainModuleResult& result) const {
    facts->emplace_back("compile", result.compile ? "true" : "false");
  }
  void operator()(const core::OpenStreamResult& result) const {
    facts->emplace_back("slot", absl::StrCat(result.stream.slot));
  }
  void operator()(const core::ForgetResult& result) const {
    switch (result.outcome) {
      case core::ForgetOutcome::kCancelled:
        return void(facts->emplace_back("forgotten", "cancelled"));
      case core::ForgetOutcome::kUndone:
        return void(facts->emplace_back("forgotten", "undone"));
      case core::ForgetOutcome::kRemembered:
      case core::ForgetOutcome::kNothingToDo:
        return void(facts->emplace_back("forgotten", "nothing"));
    }
  }
  template <typename Result>
  void operator()(const Result&) const {}
};

}  // namespace

std::string AuditId(uint64_t id) { return absl::StrFormat("%016x", id); }

const char* AddFacts(const core::AcquireRequest& request, Facts facts) {
  facts->emplace_back("pool", request.pool);
  facts->emplace_back("units", absl::StrCat(request.units));
  if (request.priority != 0) facts->emplace_back("priority", absl::StrCat(request.priority));
  if (request.exclusive) facts->emplace_back("exclusive", "true");
  AddLabel(request.label, facts);
  return "acquire";
}

const char* AddFacts(const core::GangRequest& request, Facts facts) {
  facts->emplace_back("members", absl::StrJoin(request.members, ", ", [](std::string* out, const auto& member) {
                        absl::StrAppend(out, member.units, " of ", member.pool);
                      }));
  AddItems(request.reserve, facts);
  AddLabel(request.label, facts);
  return "acquire_gang";
}

const char* AddFacts(const AcquisitionId& release, Facts facts) {
  facts->emplace_back("acquisition", absl::StrCat(release.value()));
  return "release";
}

const char* AddFacts(const core::ReleaseIfIdleRequest& request, Facts facts) {
  return AddFacts(request.acquisition, facts);
}

const char* AddFacts(const core::AllocateRequest& request, Facts facts) {
  facts->emplace_back("bytes", absl::StrCat(request.bytes.count()));
  facts->emplace_back("on", request.device_uuid.empty() ? absl::StrCat(request.device) : request.device_uuid);
  if (request.reservation) facts->emplace_back("reservation", AuditId(request.reservation.value()));
  AddLabel(request.label, facts);
  return "allocate";
}

const char* AddFacts(const core::FreeRequest& request, Facts facts) {
  facts->emplace_back("block", AuditId(request.handle.block.value()));
  return "free";
}

const char* AddFacts(const core::GrantRequest& request, Facts facts) {
  facts->emplace_back("block", AuditId(request.handle.block.value()));
  const auto* const session = std::get_if<SessionId>(&request.grantee);
  facts->emplace_back("to", session != nullptr ? absl::StrCat("session ", AuditId(session->value()))
                                               : OwnerOf(std::get<core::Tenant>(request.grantee)));
  return "grant";
}

const char* AddFacts(const core::ImportRequest& request, Facts facts) {
  if (request.name.empty()) {
    facts->emplace_back("asked_block", AuditId(request.handle.block.value()));
  } else {
    facts->emplace_back("asked_name", request.name);
  }
  if (request.read_only) facts->emplace_back("read_only", "true");
  return "import";
}

const char* AddFacts(const core::PublishRequest& request, Facts facts) {
  facts->emplace_back("block", AuditId(request.handle.block.value()));
  facts->emplace_back("block_name", request.name);
  return "publish";
}

const char* AddFacts(const core::UnpublishRequest& request, Facts facts) {
  facts->emplace_back("block_name", request.name);
  if (request.tenant.has_value()) facts->emplace_back("of", OwnerOf(*request.tenant));
  return "unpublish";
}

const char* AddFacts(const core::ReserveRequest& request, Facts facts) {
  AddItems(request.items, facts);
  AddLabel(request.label, facts);
  return "reserve";
}

const char* AddFacts(const ReservationId& release, Facts facts) {
  facts->emplace_back("reservation", AuditId(release.value()));
  return "release_reservation";
}

const char* AddFacts(const core::PlanRequest& request, Facts facts) {
  facts->emplace_back("units", absl::StrCat(request.units));
  AddLabel(request.label, facts);
  return "make_plan";
}

const char* AddFacts(const core::ReplanRequest& request, Facts facts) {
  facts->emplace_back("plan", AuditId(request.plan.value()));
  return "replan";
}

const char* AddFacts(const PlanId& release, Facts facts) {
  facts->emplace_back("plan", AuditId(release.value()));
  return "release_plan";
}

const char* AddFacts(const core::SetBudgetRequest& request, Facts facts) {
  if (request.device.has_value()) facts->emplace_back("device", absl::StrCat(*request.device));
  if (const auto* const tenant = std::get_if<core::Tenant>(&request.of)) {
    facts->emplace_back("of", OwnerOf(*tenant));
  } else if (const auto* const session = std::get_if<SessionId>(&request.of)) {
    facts->emplace_back("of", absl::StrCat("session ", AuditId(session->value())));
  }
  facts->emplace_back("limit_bytes", request.limit.has_value() ? absl::StrCat(request.limit->count()) : "none");
  return "set_budget";
}

const char* AddFacts(const core::ObtainModuleRequest& request, Facts facts) {
  facts->emplace_back("key", ToHex(request.key));
  AddLabel(request.label, facts);
  return "obtain_module";
}

const char* AddFacts(const core::StoreModuleRequest& request, Facts facts) {
  facts->emplace_back("bytes", absl::StrCat(request.bytes.count()));
  facts->emplace_back("content", ToHex(request.content));
  return "store_module";
}

const char* AddFacts(const core::AbandonModuleRequest& request, Facts facts) {
  facts->emplace_back("of_source", request.error.empty() ? "false" : "true");
  return "abandon_module";
}

const char* AddFacts(const core::OpenStreamRequest& request, Facts facts) {
  facts->emplace_back("device", absl::StrCat(request.device));
  return "open_stream";
}

const char* AddFacts(const core::CloseStreamRequest& request, Facts facts) {
  facts->emplace_back("slot", absl::StrCat(request.slot));
  return "close_stream";
}

void AddFacts(const core::Response& response, Facts facts) { std::visit(AnswerFacts{facts}, response); }

}  // namespace berth::service
