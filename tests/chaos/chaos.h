// Chaos: a daemon under load whose processes, and those of its clients, are killed and stopped at random. Between the
// deaths of supervisor and broker it leaves the interval that the daemon requires: the replacement of one runs before
// the other dies (docs/concepts/guarantees.md). All other processes die at any time.
//
// With `stops` the whole daemon is also stopped and killed, and restarted. Blocks end with it, so clients lease only
// permits and plans, and jobs of `berth run` hold permits beside them.
//
//   Chaos chaos({.seed = 7});
//   for (int round = 0; round < 10; ++round) chaos.Round();   // checks, with GoogleTest's expectations
//   chaos.Finish();

#ifndef TESTS_CHAOS_CHAOS_H_
#define TESTS_CHAOS_CHAOS_H_

#include <sys/types.h>

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/chaos/history.h"
#include "tests/chaos/overlap.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/installed.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"

namespace berth::testing {

struct ChaosOptions {
  uint64_t seed = 0;
  // The daemon's --backend.
  std::string backend = "host";
  // Devices on the host backend; a GPU's blocks are on its first device.
  uint32_t host_devices = 2;
  size_t clients = 8;
  bool stops = false;
};

class Chaos {
 public:
  explicit Chaos(const ChaosOptions& options);

  // Starts the clients' work, causes a series of accidents to them and the daemon, and halts the clients. Expects every
  // byte to be as written, the accounting to be exact to the byte, and no pool to have exceeded its cap. A round has 5
  // deaths of brokers, 2 of workers, 1 of a supervisor, and every other time an upgrade. With `stops` it has 2 stops, 3
  // deaths of supervisor and broker at once, 2 of brokers and 1 of a supervisor.
  void Round();
  // Ends the clients. Expects the accounting to be as at the start, and the clients to have been granted their
  // requests, except for a few that a death ended.
  void Finish();

  // Describes the events so far.
  std::string Describe() const;

 private:
  struct Client {
    Actor actor;
    bool cache = false;
    std::string path;
    std::optional<History> history;
  };
  // A `berth run` whose command records its running time.
  struct Job {
    Subprocess run;
    // The wrapper's command holds the permit without the wrapper.
    bool tree = false;
    std::string path;
  };

  TestDaemonOptions DaemonOptions() const;
  Client Start();
  void Go(Client& client);
  void StartJobs();
  // Reads the jobs' records. Requires: every permit is back.
  void EndJobs();
  // Makes a client lease another block, and a second client map it, too.
  void ShareBlocks();
  // Halts the clients. Expects all data to be correct.
  void Halt();
  void ExpectAccounts();
  void ExpectNoOverlap();
  std::string MismatchOf(const Accounts& expected);
  // Describes every block, and the last events of blocks, for messages.
  std::string DescribeBlocks();

  std::vector<std::string> Deal();
  void Suffer(const std::string& accident);
  void KillBroker();
  // Kills a random process of `pids`. Returns whether there was one.
  bool KillOneOf(const std::vector<pid_t>& pids);
  std::vector<pid_t> Monitors() const;
  void Stop(const std::string& accident);
  void Upgrade();
  void KillClient();
  // Kills a job's wrapper, which waits for its command.
  void KillWrapper();
  std::list<Client>::iterator AnyClient();
  // Waits until the clients have made so many more steps.
  void AwaitSteps(uint64_t count);
  uint64_t StepsNow() const;

  const ChaosOptions options_;
  std::mt19937_64 random_;
  const Installed installed_;
  TestDaemon daemon_;
  const std::string folder_;
  std::list<Client> clients_;
  std::vector<Job> jobs_;
  std::vector<HeldInterval> intervals_;
  // Blocks and bytes that stay leased during a halt.
  uint64_t held_blocks_ = 0;
  uint64_t held_bytes_ = 0;
  uint64_t buried_steps_ = 0;
  uint64_t histories_ = 0;
  uint64_t refused_ = 0;
  uint64_t grants_ = 0;
  uint64_t job_grants_ = 0;
  uint64_t rounds_ = 0;
  std::map<uint32_t, uint64_t> most_;
  std::map<std::string, uint64_t> accidents_;
};

}  // namespace berth::testing

#endif  // TESTS_CHAOS_CHAOS_H_
