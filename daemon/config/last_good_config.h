// LastGoodConfig reads the daemon's configuration. It stores the file's text, as last read without a mistake, in the fd
// store, so that a later broker can use it. A mistake in the file therefore costs no lease.
//
//   LastGoodConfig config(options, devices, fd_store, &held);
//   BERTH_ASSIGN_OR_RETURN(const Settings settings, config.ReadToStart());
//   if (!config.mistake().ok()) ...                       // the file's; settings are from before the mistake
//   absl::StatusOr<Settings> now = config.Read();         // to reload

#ifndef DAEMON_CONFIG_LAST_GOOD_CONFIG_H_
#define DAEMON_CONFIG_LAST_GOOD_CONFIG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/os/unique_fd.h"
#include "daemon/config/options.h"
#include "daemon/config/settings.h"
#include "daemon/device/monitor/device_record.h"
#include "daemon/supervisor/broker_link.h"
#include "daemon/supervisor/fd_store/supervisor_fd_store.h"

namespace berth {

// Marks `error` as the operator's: every start with the same configuration ends with it. Leaves a want of resources as
// it is.
absl::Status AsConfigurationMistake(absl::Status error);
bool IsConfigurationMistake(const absl::Status& error);

// Thread-compatible. AwaitSettled() is thread-safe.
class LastGoodConfig {
 public:
  // A file that no process has open for writing is complete if it was last written before this time.
  static constexpr absl::Duration kSettle = absl::Milliseconds(50);
  // The same time for a file that a process has open for writing: longer than a save takes. The process may keep the
  // file open for ever.
  static constexpr absl::Duration kSettleOpen = absl::Seconds(2);
  // Longest wait of a broker that can use the text of an earlier broker, while clients wait for it.
  static constexpr absl::Duration kMaxSettle = absl::Seconds(1);
  // Longest wait of the first broker, which has no such text, and of one attempt of a reload. Longer than kSettleOpen.
  static constexpr absl::Duration kMaxSettleWithoutText = absl::Seconds(5);

  // Takes the text that earlier brokers stored, and the inherited outputs, out of `held`. A file that names none of
  // `devices` has a mistake (CheckDeviceCaps()). So has a file whose `log.file` names an fd that is not among these
  // outputs. `fd_store` outlives this.
  LastGoodConfig(Options options, std::vector<DeviceRecord> devices, SupervisorFdStore* fd_store, HeldFds* held);

  // Waits until the file is complete, as far as its times and the kernel's count of its writers show it, for at most
  // `limit`. An editor that saves in place truncates the file and then writes it. Returns the complete file's mark;
  // nothing if the file is still being written.
  std::optional<ConfigMark> AwaitSettled(absl::Duration limit = kMaxSettleWithoutText) const;
  // Reads flags, environment and file, and stores the file's text. A file without any setting, where the stored text
  // has one, is a mistake: the file is about to be written, or was cut. So is, without `complete`, a file that was
  // changed within kSettleOpen by a process that still has it open. Logs the devices that the file names and that are
  // absent for now, and that a file is still open for writing. Errors: ReadConfigText()'s, kInvalidArgument,
  // CombineSettings()'s, CheckDeviceCaps()'s; the stored text is then unchanged.
  absl::StatusOr<Settings> Read(const std::optional<ConfigMark>& complete = std::nullopt);
  // Like Read() of the complete file, but uses the stored text of an earlier broker if the file has a mistake or is
  // still being written. Errors: as Read(), if there is no stored text, marked by AsConfigurationMistake().
  absl::StatusOr<Settings> ReadToStart();
  // Returns the inherited output that `log.file` names, which stays open as long as this; -1 for none. Drops the
  // others.
  int TakeUpOutput(const Settings& settings);
  // Returns the settings of the earlier broker, if its file had another text than that of ReadToStart().
  const std::optional<Settings>& earlier() const { return earlier_; }

  // The mistake that ReadToStart() ignored; OK for none.
  const absl::Status& mistake() const { return mistake_; }
  // Whether that was a file that was being written: a reload is due.
  bool being_written() const { return being_written_; }

 private:
  void TakeStored(HeldFds* held);
  absl::Status CheckOutput(const Settings& settings) const;
  // Replaces the stored text. If that fails, a later broker uses the earlier text.
  void Store(const std::string& text);

  const Options options_;
  const std::vector<DeviceRecord> devices_;
  SupervisorFdStore& fd_store_;
  // Id of the text in the fd store: the greatest id is the newest; 0 for none.
  uint64_t id_ = 0;
  UniqueFd file_;
  std::string text_;
  absl::Status mistake_;
  bool being_written_ = false;
  std::optional<Settings> earlier_;
  // By the numbers that they had when the daemon was started.
  std::map<int, UniqueFd> outputs_;
};

}  // namespace berth

#endif  // DAEMON_CONFIG_LAST_GOOD_CONFIG_H_
