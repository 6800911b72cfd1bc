// ModuleModel: what there is of compiled modules outside the core: the keeper's memory, places and disk, what it is
// to do, and who has been told that he may compile. It says what is wrong with what the core wants or answers.

#ifndef TESTS_SIM_MODULE_MODEL_H_
#define TESTS_SIM_MODULE_MODEL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/module_types.h"

namespace berth::core {

// Thread-compatible. Methods that return text say what is wrong; it is empty if nothing is.
class ModuleModel {
 public:
  using Key = std::pair<Tenant, Digest>;
  // Whether that process may still use what it was given.
  using Lives = absl::FunctionRef<bool(ChannelId)>;

  // An earlier daemon has left that on disk.
  void Leave(const ModuleRecord& record) { disk_[{record.tenant, record.key}] = record; }
  // What is on disk, for the broker that follows.
  std::vector<ModuleRecord> OnDisk() const;
  // The keeper is gone with the broker: what it had in memory, places, and what it was to do. Nobody may compile by
  // what the broker before has said.
  void Die();

  std::string Carry(const ModuleWork& work);
  bool has_work() const { return !work_.empty(); }
  // What the keeper does next.
  ModuleWork TakeWork();
  // It came to that: the memory holds it from now on. Of kStore and kLoad that went well.
  void Keep(const ModuleWork& work);
  // The file is not what it was.
  void Corrupt(const ModuleWork& work) { disk_.erase({work.record.tenant, work.record.key}); }

  // A process was answered.
  std::string Learn(absl::Time now, ChannelId channel, const Tenant& tenant, const ObtainModuleRequest& asked,
                    const ObtainModuleResult& result, Lives lives);
  // It has said something that gives the right up.
  void Release(CompileId compile) { rights_.erase(compile); }
  // One that the process was told of and has not released; 0 for none.
  CompileId RightOf(ChannelId channel) const;

  // Places that are made and not over.
  size_t places() const { return places_.size(); }
  uint64_t hits() const { return hits_; }
  uint64_t rights() const { return given_; }

 private:
  struct Right {
    ChannelId channel;
    Key key;
    absl::Time expires;
  };

  std::deque<ModuleWork> work_;
  std::set<CompileId> places_;
  // What each module in memory is, and what is on disk.
  std::map<ModuleId, std::pair<Key, Digest>> memory_;
  std::map<Key, ModuleRecord> disk_;
  std::map<CompileId, Right> rights_;
  uint64_t hits_ = 0;
  uint64_t given_ = 0;
};

}  // namespace berth::core

#endif  // TESTS_SIM_MODULE_MODEL_H_
