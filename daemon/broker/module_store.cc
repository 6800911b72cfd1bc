#include "daemon/broker/module_store.h"

#include <string>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "common/os/memfd.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "daemon/broker/needed_thread.h"
#include "daemon/supervisor/fd_store/fd_reserve.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

template <typename Id>
absl::StatusOr<UniqueFd> Duplicate(const absl::flat_hash_map<Id, UniqueFd>& fds, Id id) {
  const auto found = fds.find(id);
  if (found == fds.end()) return absl::NotFoundError("the module is no longer in the cache");
  return DuplicateFd(found->second.get());
}

// Passes on an fd whose number clients may use. Errors: LIMIT; those of `fd`.
absl::StatusOr<UniqueFd> AsClients(absl::StatusOr<UniqueFd> fd) {
  if (fd.ok()) {
    BERTH_RETURN_IF_ERROR(CheckFd(fd->get(), FdOwner::kClient));
  }
  return fd;
}

}  // namespace

ModuleStore::ModuleStore(Broker* broker, std::unique_ptr<ModuleFiles> files, Bytes largest,
                         Bytes written_at_once)
    : broker_(*broker),
      largest_(largest),
      files_(std::move(files)),
      written_({.per_second = static_cast<double>(kWrittenPerSecond.count()),
                .burst = static_cast<double>(written_at_once.count())}),
      thread_(NeededThread("modules", [this] { Run(); })) {}

ModuleStore::~ModuleStore() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    more_.Signal();
  }
  thread_.join();
}

void ModuleStore::Apply(const core::ModuleWork& work) {
  // Executed at once: the place's fd is delivered next.
  if (work.what == core::ModuleWork::What::kMakePlace) return MakePlace(work.compile);
  const uint32_t user = core::UserOf(work.record.tenant);
  MutexLock lock(&mu_);
  if (work.what == core::ModuleWork::What::kDrop) {
    steps_.DropIf(user, [&](const Step& step) { return step.memory && step.work.module == work.module; });
  }
  steps_.Push(user, {.work = work});
  more_.Signal();
}

void ModuleStore::WriteLater(const core::ModuleWork& work, UniqueFd memory) {
  const uint32_t user = core::UserOf(work.record.tenant);
  MutexLock lock(&mu_);
  const bool dropped = steps_.HasIf(user, [&](const Step& step) {
    return step.work.what == core::ModuleWork::What::kDrop && step.work.module == work.module;
  });
  if (!dropped) steps_.Push(user, {.work = work, .memory = std::move(memory)});
}

absl::StatusOr<UniqueFd> ModuleStore::OpenModule(core::ModuleId module) const {
  MutexLock lock(&mu_);
  return Duplicate(modules_, module);
}

absl::StatusOr<UniqueFd> ModuleStore::OpenPlace(core::CompileId compile) const {
  MutexLock lock(&mu_);
  return Duplicate(places_, compile);
}

void ModuleStore::Flush(absl::Duration patience) {
  const absl::Time deadline = SteadyNow() + patience;
  MutexLock lock(&mu_);
  while (!steps_.empty() || working_) {
    if (idle_.WaitWithDeadline(&mu_, deadline)) return;
  }
}

void ModuleStore::Run() {
  while (true) {
    Step step;
    {
      MutexLock lock(&mu_);
      working_ = false;
      if (steps_.empty()) idle_.SignalAll();
      while (steps_.empty() && !stop_) more_.Wait(&mu_);
      if (stop_) return;
      working_ = true;
      step = *steps_.Take();
    }
    Do(std::move(step));
  }
}

void ModuleStore::Do(Step step) {
  const core::ModuleWork& work = step.work;
  if (step.memory) return Write(work, step.memory);
  // Closed without the lock: closing takes time in proportion to the size.
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
    case core::ModuleWork::What::kDrop:
      return Drop(work);
  }
}

void ModuleStore::Drop(const core::ModuleWork& work) {
  if (files_ != nullptr) files_->Drop(work.record);
  // Closed without the lock: closing takes time in proportion to the size.
  UniqueFd gone;
  MutexLock lock(&mu_);
  if (const auto module = modules_.find(work.module); module != modules_.end()) {
    gone = std::move(module->second);
    modules_.erase(module);
  }
}

void ModuleStore::MakePlace(core::CompileId compile) {
  absl::StatusOr<UniqueFd> place = AsClients(CreateMemfd("berth-place", largest_.count()));
  // Sealed so that the client cannot enlarge the place. Writes allocate its memory.
  const absl::Status sealed = place.ok() ? SealMemfd(place->get()) : place.status();
  if (!sealed.ok()) {
    spdlog::error("cannot create the memory for a compiled module: {}", std::string(sealed.message()));
    return;
  }
  MutexLock lock(&mu_);
  places_[compile] = *std::move(place);
}

absl::StatusOr<UniqueFd> ModuleStore::TakeOver(const core::ModuleWork& work) {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd place, OpenPlace(work.compile));
  BERTH_ASSIGN_OR_RETURN(SealedModule sealed, SealModule(place.get(), 0, work.record.bytes));
  if (sealed.content == work.record.content) return AsClients(std::move(sealed.fd));
  return Refuse(Reason::kInvalidField, "{field} is {value}, but the written bytes have {limit}",
                {{"field", "content"}, {"value", ToHex(work.record.content)}, {"limit", ToHex(sealed.content)}});
}

void ModuleStore::Store(const core::ModuleWork& work) {
  absl::StatusOr<UniqueFd> taken = TakeOver(work);
  UniqueFd to_write;
  if (taken.ok()) {
    absl::StatusOr<UniqueFd> copy = DuplicateFd(taken->get());
    if (copy.ok() && files_ != nullptr) to_write = *std::move(copy);
    MutexLock lock(&mu_);
    modules_[work.module] = *std::move(taken);
  }
  const absl::Status status = taken.status();
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.ModuleStored(now, work.module, work.compile, status, effects);
  });
  if (to_write) WriteLater(work, std::move(to_write));
}

void ModuleStore::Write(const core::ModuleWork& work, const UniqueFd& memory) {
  const uint32_t user = core::UserOf(work.record.tenant);
  const absl::Time now = SteadyNow();
  const absl::Status written = written_.Of(now, user).Take(now, static_cast<double>(work.record.bytes.count()))
                                   ? files_->Store(work.record, memory.get())
                                   : absl::ResourceExhaustedError(absl::StrCat("uid ", user, " stores too many bytes"));
  // Logs only the first failure in a row: a full disk stays full for a while.
  if (!written.ok() && !unwritable_) {
    spdlog::warn("cannot persist a compiled module: {}; it is lost at a restart", std::string(written.message()));
  }
  unwritable_ = !written.ok();
}

void ModuleStore::Load(const core::ModuleWork& work) {
  absl::StatusOr<UniqueFd> loaded = absl::DataLossError("no module is stored on disk");
  if (files_ != nullptr) loaded = AsClients(files_->Load(work.record));
  if (absl::IsDataLoss(loaded.status())) {
    spdlog::warn("cannot load module {} of uid {}: {}; dropping it", ToHex(work.record.key), work.record.tenant.uid,
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
