// SettingsStore: persists the operators' settings in a file of the state folder, across stops and reboots.

#ifndef DAEMON_SERVICE_RPC_SETTINGS_STORE_H_
#define DAEMON_SERVICE_RPC_SETTINGS_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "common/steady_cond_var.h"
#include "common/thread.h"
#include "daemon/broker/broker.h"
#include "daemon/core/types/operator_settings.h"

namespace berth::state {
class OperatorSettings;
}  // namespace berth::state

namespace berth::service {

// Converts the core's value to the state file's message.
state::OperatorSettings ToProto(const core::OperatorSettings& settings);

// Thread-safe. A slow disk blocks no caller for longer than kPatience.
class SettingsStore {
 public:
  static constexpr char kFileName[] = "operator_settings.json";
  static constexpr absl::Duration kPatience = absl::Milliseconds(500);
  // Time after a failure until the next attempt to write the file.
  static constexpr absl::Duration kRetryAfter = absl::Seconds(10);

  // `broker` must outlive the store. Starts the writing thread, which may be unavailable later; reads and writes
  // nothing yet.
  SettingsStore(std::string folder, Broker* broker);
  ~SettingsStore();
  SettingsStore(const SettingsStore&) = delete;
  SettingsStore& operator=(const SettingsStore&) = delete;

  // Reads the file, and applies its settings in the core; called once, before Save(). `begun_anew`: whether the core
  // has none of them. If not, the ledger has restored them, and the store applies only the settings that an earlier
  // daemon could not apply. A setting that cannot be applied is logged, and stays in the file.
  // Errors: kFailedPrecondition naming the file and the mistake; those of the system. The file then stays until the
  // next Save(), which renames it to NAME.unreadable.
  absl::Status Load(bool begun_anew);
  // Writes the operators' current settings, if they differ from the file. Waits for the disk, at most `patience`. A
  // failure is logged, reported by fault(), and retried. Does nothing while the ledger is unreadable.
  void Save(absl::Duration patience = kPatience);
  // Requests a check that the file still has the text that was read or written last. The store writes a missing or
  // different file again. Does not wait.
  void Look();
  // Becomes readable (POLLIN) when the file may have changed; Look() is then due. -1 for none.
  int watch_fd() const { return watch_.get(); }
  // Returns why the file lacks the operators' settings; empty if it has them.
  std::string fault() const;

 private:
  // Applies `settings`; adds those that the core refuses to absent_.
  void Make(const state::OperatorSettings& settings);
  void Write();
  // Watches the file, and returns whether it has another text than `text`.
  bool HasChanged(absl::string_view text);
  absl::Status WriteFile(absl::string_view text);

  const std::string path_;
  Broker& broker_;
  // Settings that the core refused.
  std::unique_ptr<state::OperatorSettings> absent_;
  // True if the existing file could not be read. The store renames it before it writes another, so nothing is lost.
  std::atomic<bool> unreadable_ = false;
  // The file was read or written: it should exist.
  std::atomic<bool> exists_ = false;
  // The inotify instance that watches the file.
  const UniqueFd watch_;
  // Held while the settings are read from the core: an older reading never replaces a newer one.
  Mutex reading_;
  mutable Mutex mu_ ABSL_ACQUIRED_AFTER(reading_);
  SteadyCondVar more_;
  SteadyCondVar written_;
  // Text to write; initially the file's, or that of empty settings.
  std::string wanted_ ABSL_GUARDED_BY(mu_);
  // Numbers of the texts: the last requested, attempted, and written.
  uint64_t last_wanted_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_tried_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_written_ ABSL_GUARDED_BY(mu_) = 0;
  // Outcome of the last attempt to write.
  absl::Status attempt_ ABSL_GUARDED_BY(mu_);
  // A check of the file was requested.
  bool look_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread writer_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_SETTINGS_STORE_H_
