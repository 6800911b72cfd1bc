#include "daemon/broker/module_keeper.h"

#include <string>
#include <utility>

#include "common/error.h"
#include "common/memfd.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "daemon/vault/fd_reserve.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

template <typename Id>
absl::StatusOr<UniqueFd> Duplicate(const absl::flat_hash_map<Id, UniqueFd>& fds, Id id) {
  const auto found = fds.find(id);
  if (found == fds.end()) return absl::NotFoundError("it is not there any more");
  return DuplicateFd(found->second.get());
}

// The same, where it is one of those that clients may have. Errors: LIMIT.
absl::StatusOr<UniqueFd> AsClients(absl::StatusOr<UniqueFd> fd) {
  if (fd.ok()) {
    BERTH_RETURN_IF_ERROR(CheckFd(fd->get(), FdOwner::kClient));
  }
  return fd;
}

}  // namespace

ModuleKeeper::ModuleKeeper(Broker* broker, std::unique_ptr<ModuleFiles> files, Bytes largest)
    : broker_(*broker), largest_(largest), files_(std::move(files)), thread_([this] { Run(); }) {}

ModuleKeeper::~ModuleKeeper() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    more_.Signal();
  }
  thread_.join();
}

void ModuleKeeper::Carry(const core::ModuleWork& work) {
  // It is delivered next.
  if (work.what == core::ModuleWork::What::kMakePlace) return MakePlace(work.compile);
  MutexLock lock(&mu_);
  work_.push_back(work);
  more_.Signal();
}

absl::StatusOr<UniqueFd> ModuleKeeper::OpenModule(core::ModuleId module) const {
  MutexLock lock(&mu_);
  return Duplicate(modules_, module);
}

absl::StatusOr<UniqueFd> ModuleKeeper::OpenPlace(core::CompileId compile) const {
  MutexLock lock(&mu_);
  return Duplicate(places_, compile);
}

void ModuleKeeper::Flush(absl::Duration patience) {
  const absl::Time deadline = SteadyNow() + patience;
  MutexLock lock(&mu_);
  while (!work_.empty() || working_) {
    if (idle_.WaitWithDeadline(&mu_, deadline)) return;
  }
}

void ModuleKeeper::Run() {
  while (true) {
    core::ModuleWork work;
    {
      MutexLock lock(&mu_);
      working_ = false;
      if (work_.empty()) idle_.SignalAll();
      while (work_.empty() && !stop_) more_.Wait(&mu_);
      if (stop_) return;
      working_ = true;
      work = std::move(work_.front());
      work_.pop_front();
    }
    Do(work);
  }
}

void ModuleKeeper::Do(const core::ModuleWork& work) {
  // To be closed without the lock: that takes time by their size.
  UniqueFd gone;
  switch (work.what) {
    case core::ModuleWork::What::kMakePlace:
      return;
    case core::ModuleWork::What::kEndPlace: {
      MutexLock lock(&mu_);
      if (const auto place = places_.find(work.compile); place != places_.end()) {
        gone = std::move(place->second);
        places_.erase(place);
      }
      return;
    }
    case core::ModuleWork::What::kStore:
      return Store(work);
    case core::ModuleWork::What::kLoad:
      return Load(work);
    case core::ModuleWork::What::kDrop: {
      if (files_ != nullptr) files_->Drop(work.record);
      MutexLock lock(&mu_);
      if (const auto module = modules_.find(work.module); module != modules_.end()) {
        gone = std::move(module->second);
        modules_.erase(module);
      }
      return;
    }
  }
}

void ModuleKeeper::MakePlace(core::CompileId compile) {
  absl::StatusOr<UniqueFd> place = AsClients(CreateMemfd("berth-place", largest_.count()));
  // Who has it shall not make it larger; it takes memory as it is written to.
  const absl::Status sealed = place.ok() ? SealMemfd(place->get()) : place.status();
  if (!sealed.ok()) {
    spdlog::error("no place for a module: {}", std::string(sealed.message()));
    return;
  }
  MutexLock lock(&mu_);
  places_[compile] = *std::move(place);
}

absl::StatusOr<UniqueFd> ModuleKeeper::TakeOver(const core::ModuleWork& work) {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd place, OpenPlace(work.compile));
  BERTH_ASSIGN_OR_RETURN(SealedModule sealed, SealModule(place.get(), 0, work.record.bytes));
  if (sealed.content == work.record.content) return AsClients(std::move(sealed.fd));
  return Refuse(Reason::kInvalidField, "{field} is {value}, what was written has {limit}",
                {{"field", "content"}, {"value", ToHex(work.record.content)}, {"limit", ToHex(sealed.content)}});
}

void ModuleKeeper::Store(const core::ModuleWork& work) {
  absl::StatusOr<UniqueFd> taken = TakeOver(work);
  UniqueFd to_write;
  if (taken.ok()) {
    absl::StatusOr<UniqueFd> copy = DuplicateFd(taken->get());
    if (copy.ok()) to_write = *std::move(copy);
    MutexLock lock(&mu_);
    modules_[work.module] = *std::move(taken);
  }
  const absl::Status status = taken.status();
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.ModuleStored(now, work.module, work.compile, status, effects);
  });
  if (!to_write || files_ == nullptr) return;
  const absl::Status written = files_->Store(work.record, to_write.get());
  // Once is enough: a disk that is full stays full for a while.
  if (!written.ok() && !unwritable_) {
    spdlog::warn("a module is not kept over a restart: {}", std::string(written.message()));
  }
  unwritable_ = !written.ok();
}

void ModuleKeeper::Load(const core::ModuleWork& work) {
  absl::StatusOr<UniqueFd> loaded = absl::DataLossError("nothing is kept on disk");
  if (files_ != nullptr) loaded = AsClients(files_->Load(work.record));
  if (absl::IsDataLoss(loaded.status())) {
    spdlog::warn("module {} of uid {}: {}; it is dropped", ToHex(work.record.key), work.record.tenant.uid,
                 std::string(loaded.status().message()));
  }
  const absl::Status status = loaded.status();
  if (loaded.ok()) {
    MutexLock lock(&mu_);
    modules_[work.module] = *std::move(loaded);
  }
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.ModuleLoaded(now, work.module, status, effects);
  });
}

}  // namespace berth
