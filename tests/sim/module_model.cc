#include "tests/sim/module_model.h"

namespace berth::core {

std::string ModuleModel::Apply(const ModuleWork& work) {
  const Key key(work.record.tenant, work.record.key);
  switch (work.what) {
    case ModuleWork::What::kMakePlace:
      return places_.insert(work.compile).second ? "" : "a place is made twice";
    case ModuleWork::What::kStore:
      if (!places_.contains(work.compile)) return "a module is stored from no place";
      break;
    case ModuleWork::What::kEndPlace:
      if (!places_.contains(work.compile)) return "a place is over that is not there";
      break;
    case ModuleWork::What::kLoad:
    case ModuleWork::What::kDrop:
      break;
  }
  work_.push_back(work);
  return "";
}

ModuleWork ModuleModel::TakeWork() {
  const ModuleWork work = work_.front();
  work_.pop_front();
  if (work.what == ModuleWork::What::kEndPlace) places_.erase(work.compile);
  if (work.what == ModuleWork::What::kDrop) {
    memory_.erase(work.module);
    disk_.erase({work.record.tenant, work.record.key});
  }
  return work;
}

void ModuleModel::Store(const ModuleWork& work) {
  const Key key(work.record.tenant, work.record.key);
  memory_[work.module] = {key, work.record.content};
  disk_[key] = work.record;
}

std::vector<ModuleRecord> ModuleModel::OnDisk() const {
  std::vector<ModuleRecord> records;
  for (const auto& [key, record] : disk_) records.push_back(record);
  return records;
}

void ModuleModel::Die() {
  work_.clear();
  places_.clear();
  memory_.clear();
  rights_.clear();
}

std::string ModuleModel::Learn(absl::Time now, ChannelId channel, const Tenant& tenant,
                               const ObtainModuleRequest& asked, const ObtainModuleResult& result,
                               Lives lives) {
  const Key key(tenant, asked.key);
  if (!result.compile) {
    ++hits_;
    const auto found = memory_.find(result.module);
    if (found == memory_.end()) return "a module is given that is not there";
    if (found->second.first != key) return "a module is given that is another's, or of another key";
    if (found->second.second != result.content) return "a module is given as what it is not";
    return "";
  }
  ++given_;
  if (!places_.contains(result.compile)) return "there is no place for what is to be compiled";
  // An ended process can send nothing any more.
  std::erase_if(rights_, [&](const auto& right) { return !lives(right.second.channel); });
  for (const auto& [compile, right] : rights_) {
    if (right.key == key && right.expires > now) return "two compile the same at a time";
  }
  rights_[result.compile] = {.channel = channel, .key = key, .expires = result.expires};
  return "";
}

CompileId ModuleModel::RightOf(ChannelId channel) const {
  for (const auto& [compile, right] : rights_) {
    if (right.channel == channel) return compile;
  }
  return CompileId();
}

}  // namespace berth::core
