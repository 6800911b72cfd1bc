// Chaos: a daemon under load whose processes, and those of its clients, are killed and stopped as chance has it. It
// leaves between the deaths of vault and broker what the daemon asks for: the next one is there before the other one
// goes (docs/guarantees.md). All else dies at any time.
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
#include "tests/support/actor_handle.h"
#include "tests/support/installed.h"
#include "tests/support/test_daemon.h"

namespace berth::testing {

struct ChaosOptions {
  uint64_t seed = 0;
  // Of the daemon's --backend.
  std::string backend = "host";
  // Of the host; a GPU's blocks are of the first one.
  uint32_t host_devices = 2;
  size_t clients = 8;
};

class Chaos {
 public:
  explicit Chaos(const ChaosOptions& options);

  // Lets the clients go, has a hand of accidents happen to them and the daemon, halts them, and expects every byte to
  // be what was written, the books to balance to the byte, and no pool to have had more out than its cap. In a round
  // are 5 brokers' deaths, 2 workers', a vault's, and every other time an upgrade.
  void Round();
  // Ends the clients, and expects the books to be what they were at the start, and the clients to have got, but for a
  // few that met a death, what they asked for.
  void Finish();

  // What happened so far.
  std::string Describe() const;

 private:
  struct Client {
    Actor actor;
    bool cache = false;
    std::string path;
    std::optional<History> history;
  };

  TestDaemonOptions DaemonOptions() const;
  Client Start();
  void Go(Client& client);
  // A client that has one more block, and another one that has it mapped, too.
  void ShareBlocks();
  // Ends what is going on. Expects all data to be right.
  void Halt();
  void ExpectBooks();
  void ExpectNoOverlap();
  std::string MismatchOf(const Books& expected);
  // Every block, and what happened to blocks last, for messages.
  std::string DescribeBlocks();

  std::vector<std::string> Deal();
  void Suffer(const std::string& accident);
  void KillBroker();
  // Returns whether there was one.
  bool KillOneOf(const std::vector<pid_t>& pids);
  std::vector<pid_t> Monitors() const;
  void Stop(const std::string& accident);
  void Upgrade();
  void KillClient();
  std::list<Client>::iterator AnyClient();
  // Until the clients have done so many things more.
  void AwaitSteps(uint64_t count);
  uint64_t StepsNow() const;

  const ChaosOptions options_;
  std::mt19937_64 random_;
  const Installed installed_;
  TestDaemon daemon_;
  const std::string folder_;
  std::list<Client> clients_;
  std::vector<Holding> holdings_;
  // Blocks and bytes that stay over a halt.
  uint64_t kept_blocks_ = 0;
  uint64_t kept_bytes_ = 0;
  uint64_t buried_steps_ = 0;
  uint64_t histories_ = 0;
  uint64_t refused_ = 0;
  uint64_t grants_ = 0;
  uint64_t rounds_ = 0;
  std::map<uint32_t, uint64_t> most_;
  std::map<std::string, uint64_t> accidents_;
};

}  // namespace berth::testing

#endif  // TESTS_CHAOS_CHAOS_H_
