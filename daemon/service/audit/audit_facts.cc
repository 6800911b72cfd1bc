#include "daemon/service/audit/audit_facts.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace berth::service {

void AddLabel(const std::string& label, AuditFacts* facts) {
  if (!label.empty()) facts->emplace_back("request_label", label);
}

void AddItems(const std::vector<core::ReserveItem>& items, AuditFacts* facts) {
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

}  // namespace berth::service
