// ModuleModel: the state of compiled modules outside the core: the module store's memory, places, disk and work, and
// the processes that may compile. It reports errors in the core's effects and answers.

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
#include "daemon/core/types/effects.h"
#include "daemon/core/types/module_types.h"

namespace berth::core {

// Thread-compatible. Methods that return text return the error, or an empty text.
class ModuleModel {
 public:
  using Key = std::pair<Tenant, Digest>;
  // Returns whether that process may still use its results.
  using Lives = absl::FunctionRef<bool(ChannelId)>;

  // Records a file that an earlier daemon has left on disk.
  void Leave(const ModuleRecord& record) { disk_[{record.tenant, record.key}] = record; }
  // Returns the files on disk, for the next broker.
  std::vector<ModuleRecord> OnDisk() const;
  // The module store dies with the broker: its memory, places and pending work are lost. Rights to compile from that
  // broker end.
  void Die();

  std::string Apply(const ModuleWork& work);
  bool has_work() const { return !work_.empty(); }
  // Returns the module store's next work.
  ModuleWork TakeWork();
  // The work succeeded: the memory holds the module from now on. For kStore and kLoad.
  void Store(const ModuleWork& work);
  // The file on disk has changed.
  void Corrupt(const ModuleWork& work) { disk_.erase({work.record.tenant, work.record.key}); }

  // A process received an answer.
  std::string Learn(absl::Time now, ChannelId channel, const Tenant& tenant, const ObtainModuleRequest& asked,
                    const ObtainModuleResult& result, Lives lives);
  // The process has sent a message that gives up its right to compile.
  void Release(CompileId compile) { rights_.erase(compile); }
  // Returns a compile right that the process got and has not released; 0 for none.
  CompileId RightOf(ChannelId channel) const;

  // Places that were created and have not ended.
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
  // The modules in memory, and the files on disk.
  std::map<ModuleId, std::pair<Key, Digest>> memory_;
  std::map<Key, ModuleRecord> disk_;
  std::map<CompileId, Right> rights_;
  uint64_t hits_ = 0;
  uint64_t given_ = 0;
};

}  // namespace berth::core

#endif  // TESTS_SIM_MODULE_MODEL_H_
