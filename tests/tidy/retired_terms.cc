#include "tests/tidy/retired_terms.h"

namespace berth {

const std::vector<RetiredTerm>& RetiredTerms() {
  static const auto* const kTerms = new std::vector<RetiredTerm>{
      {"vault", "supervisor"},
      {"custody", "fd store"},
      {"estate", "handover state"},
      {"starter", "launcher"},
      {"successor", "launcher, or the next process"},
      {"keeper", "owner process, or manager"},
      {"desk", "manager"},
      {"lane", "worker kind"},
      {"wish", "constraint"},
      {"room", "capacity"},
      {"shelf", "warm block cache"},
      {"books", "accounting, or invariants"},
      {"figure", "metric, or measurement"},
      {"settler", "retry queue"},
      {"census", "live object counts"},
      {"capsule", "session credentials"},
      {"core config", "settings"},
      {"ledger row", "ledger record"},
      {"lease word", "lease"},
      {"permit word", "permit slot"},
      {"fence word", "fence value"},
      {"stream word", "fence value"},
      {"access word", "access value"},
      {"worker order", "worker command"},
      {"order kind", "worker command"},
      {"front guard", "client limits"},
      {"absent tenant", "detached tenant"},
      {"absent waiter", "detached waiter"},
      {"kept", "cached, persisted, restored, recorded or reserved", true},
      {"aside", "skipped", true},
      {"standing", "restored state", true},
      {"front", "server", true},
      {"carry", "apply", true},
      {"tell", "notify", true},
      {"told", "notified", true},
      {"clears check", "memory-scrub check", true},
      {"device order", "worker command", true},
      {"permit run", "permit transaction", true},
      {"plan run", "plan transaction", true},
  };
  return *kTerms;
}

const std::vector<Unchanged>& UnchangedTexts() {
  static const auto* const kTexts = new std::vector<Unchanged>{
      // The list above; history, in the words of its time, and the names of its files.
      {"tests/tidy/", ""},
      {"docs/design/", ""},
      {"tests/bench/results/", ""},
      {"tests/bench/plot_permits.py", "row[\"figure\"]"},
      // An older broker starts a new binary with this role, and finds the supervisor's cgroup by this name.
      {"daemon/", "--role=vault"},
      {"daemon/config/options.cc", "\"vault\""},
      {"daemon/supervisor/processes/cgroups", "vault"},
      {"tests/systemd/inside", "vault"},
      // Users' scripts read these, or programs of different versions exchange them.
      {"", "BERTH_PERMIT_KEEPER"},
      {"", "\"keeper\""},
      {"docs/guides/ci.md", "\"keeper\":"},
      {"tests/runners/limits_test.cc", "json[\"keeper\"]"},
      {"tests/e2e/permits/lease_ends_test.cc", "keeper"},
      {"common/error.cc", "berth/figure/"},
      {"common/wire/session_credentials.cc", "capsule1"},
      {"", "\"room\""},
      {"", "(room, min_units"},
      {"", "\"absent_tenants\""},
      {"daemon/base/partition_constraints_test.cc", "\"room "},
      {"daemon/service/rpc/memory_requests.h", "\"wish"},
      // The standard library's.
      {"", "front("},
  };
  return *kTexts;
}

}  // namespace berth
