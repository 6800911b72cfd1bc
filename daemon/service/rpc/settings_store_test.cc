#include "daemon/service/rpc/settings_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "berth/state/operator_settings.pb.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/testing/idle_sink.h"
#include "daemon/core/core.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

core::Config NodeOf(const std::vector<std::string>& devices, const std::vector<std::string>& pools) {
  core::Config config;
  config.pools.clear();
  for (const std::string& pool : pools) config.pools.push_back({.name = pool, .cap = 4, .weights = {{7, 3}}});
  for (const std::string& uuid : devices) {
    config.devices.push_back({.ordinal = static_cast<uint32_t>(config.devices.size()),
                              .uuid = uuid,
                              .name = uuid,
                              .total = MiB(64),
                              .budget = MiB(16)});
  }
  return config;
}

// A daemon's core and store, in a folder that outlives them.
class Node {
 public:
  explicit Node(const std::string& folder, const core::Config& config = NodeOf({"GPU-a", "GPU-b"}, {"one", "two"}))
      : core_(config, [this] { return ++last_id_; }, [](core::StreamKey) { return core::FenceValues(); }),
        broker_(&core_, &sink_),
        store_(folder, &broker_) {}

  absl::Status Load(bool begun_anew = true) { return store_.Load(begun_anew); }
  void Save() { store_.Save(absl::InfiniteDuration()); }
  std::string fault() const { return store_.fault(); }
  void Look() { store_.Look(); }
  absl::Status Act(const std::function<absl::Status(core::Core&, absl::Time, core::Effects*)>& act) {
    absl::Status status;
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) { status = act(core, now, effects); });
    return status;
  }
  absl::Status SetPool(const std::string& pool, const core::PoolChange& change) {
    return Act([&](core::Core& core, absl::Time now, core::Effects* effects) {
      return core.SetPool(now, pool, change, effects).status();
    });
  }
  absl::Status Drain(uint32_t device, const std::string& why) {
    return Act([&](core::Core& core, absl::Time now, core::Effects* effects) {
      return core.DrainDevice(now, device, why, effects).status();
    });
  }
  absl::Status Undrain(uint32_t device) {
    return Act([&](core::Core& core, absl::Time now, core::Effects* effects) {
      return core.UndrainDevice(now, device, effects).status();
    });
  }
  absl::Status SetBudget(const core::SetBudgetRequest& request) {
    return Act([&](core::Core& core, absl::Time now, core::Effects* effects) {
      return core.RestoreBudget(now, request, effects);
    });
  }
  std::string Settings() const { return ToProto(core_.ListOperatorSettings()).DebugString(); }
  const core::Core& core() const { return core_; }

 private:
  uint64_t last_id_ = 0;
  IdleSink sink_;
  core::Core core_;
  Broker broker_;
  SettingsStore store_;
};

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class SettingsStoreTest : public testing::Test {
 protected:
  static std::string MakeFolder() {
    std::string folder = testing::TempDir() + "/settings_XXXXXX";
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    return folder;
  }
  std::string file() const { return folder_ + "/" + SettingsStore::kFileName; }
  const std::string folder_ = MakeFolder();
};

struct Setting {
  const char* name;
  std::function<absl::Status(Node&)> set;
  std::function<absl::Status(Node&)> take_back;
};

std::vector<Setting> AllSettings() {
  const auto pool_default = [](Node& node) { return node.SetPool("one", {.defaults = true}); };
  const auto pool = [&](const char* name, const core::PoolChange& change) {
    return Setting{name, [change](Node& node) { return node.SetPool("one", change); }, pool_default};
  };
  const core::Account user = {.uid = 1000}, container = {.uid = 0, .container = "/machine/a"};
  const auto budget = [](const char* name, const core::BudgetOwner& of) {
    return Setting{name,
                   [of](Node& node) { return node.SetBudget({.device = 1, .of = of, .limit = MiB(4)}); },
                   [of](Node& node) { return node.SetBudget({.device = 1, .of = of}); }};
  };
  return {
      pool("cap", {.cap = 9}),
      pool("tenant cap", {.tenant_cap = 2}),
      pool("ageing", {.ageing = absl::Seconds(90)}),
      pool("hold warning", {.hold_warning = absl::Hours(1)}),
      pool("hold limit", {.hold_limit = absl::Hours(2)}),
      pool("weights", {.weights = {{7, 1}, {8, 5}}}),
      pool("device cap", {.device_cap = 2}),
      pool("caps of devices", {.device_caps = {{"GPU-a", 1}}}),
      pool("no idle warning", {.idle_warning = absl::InfiniteDuration()}),
      {"drain", [](Node& node) { return node.Drain(1, "a \"bad\" fan"); }, [](Node& node) { return node.Undrain(1); }},
      budget("budget of a device", {}),
      budget("budget of a user", user),
      budget("budget of a container", container),
  };
}

TEST_F(SettingsStoreTest, EachSettingOutlivesBootUntilUnset) {
  for (const Setting& setting : AllSettings()) {
    SCOPED_TRACE(setting.name);
    std::filesystem::remove(file());
    std::string set;
    {
      Node node(folder_);
      ASSERT_TRUE(node.Load().ok());
      ASSERT_TRUE(setting.set(node).ok());
      node.Save();
      set = node.Settings();
      EXPECT_NE(set, "");
      EXPECT_EQ(node.fault(), "");
    }
    {
      Node node(folder_);
      EXPECT_EQ(node.Settings(), "");
      ASSERT_TRUE(node.Load().ok());
      EXPECT_EQ(node.Settings(), set);
      ASSERT_TRUE(setting.take_back(node).ok());
      EXPECT_EQ(node.Settings(), "");
      node.Save();
    }
    Node node(folder_);
    ASSERT_TRUE(node.Load().ok());
    EXPECT_EQ(node.Settings(), "");
  }
}

TEST_F(SettingsStoreTest, AllSettingsOutliveBoot) {
  std::string set;
  {
    Node node(folder_);
    for (const Setting& setting : AllSettings()) ASSERT_TRUE(setting.set(node).ok()) << setting.name;
    node.Save();
    set = node.Settings();
  }
  Node node(folder_);
  ASSERT_TRUE(node.Load().ok());
  EXPECT_EQ(node.Settings(), set);
}

TEST_F(SettingsStoreTest, SettingsInLedgerAreNotAppliedAgain) {
  {
    Node node(folder_);
    ASSERT_TRUE(node.Drain(0, "fan").ok());
    node.Save();
  }
  Node node(folder_);
  ASSERT_TRUE(node.Load(/*begun_anew=*/false).ok());
  EXPECT_EQ(node.Settings(), "");
}

TEST_F(SettingsStoreTest, SettingsOfMissingDeviceOrPoolWaitForIt) {
  std::string set;
  {
    Node node(folder_);
    for (const Setting& setting : AllSettings()) ASSERT_TRUE(setting.set(node).ok()) << setting.name;
    node.Save();
    set = node.Settings();
  }
  // The device and the pool no longer exist; other settings are made.
  const core::Config without = NodeOf({"GPU-a"}, {"two"});
  for (int boot = 0; boot < 2; ++boot) {
    Node node(folder_, without);
    ASSERT_TRUE(node.Load().ok());
    EXPECT_FALSE(absl::StrContains(node.Settings(), "GPU-b")) << node.Settings();
    ASSERT_TRUE(node.SetPool("two", {.cap = 8}).ok());
    node.Save();
    EXPECT_EQ(node.fault(), "");
  }
  // Both are back, in another order. The previous daemon's ledger has the pool "two", and nothing of the device.
  Node node(folder_, NodeOf({"GPU-b", "GPU-a"}, {"one", "two"}));
  ASSERT_TRUE(node.Load(/*begun_anew=*/false).ok());
  ASSERT_TRUE(node.SetPool("two", {.defaults = true}).ok());
  EXPECT_EQ(node.core().ListDevices()[0].drain_reason, "a \"bad\" fan");
  EXPECT_EQ(node.core().ListDevices()[0].budget, MiB(4));
  node.Save();
  EXPECT_FALSE(absl::StrContains(Read(file()), "absent")) << Read(file());
}

TEST_F(SettingsStoreTest, CapOfMissingDeviceStaysWithPoolsOtherSettings) {
  const std::map<std::string, uint64_t> caps = {{"GPU-b", 1}};
  {
    Node node(folder_);
    ASSERT_TRUE(node.SetPool("one", {.cap = 9, .device_caps = {{"1", 1}}}).ok());
    EXPECT_EQ(node.core().GetPool("one")->config.device_caps, caps);
    node.Save();
  }
  for (const std::vector<std::string>& devices : {std::vector<std::string>{"GPU-a"}, {"GPU-a", "GPU-c", "GPU-b"}}) {
    Node node(folder_, NodeOf(devices, {"one"}));
    ASSERT_TRUE(node.Load().ok());
    EXPECT_EQ(node.core().GetPool("one")->config.cap, 9u);
    EXPECT_EQ(node.core().GetPool("one")->config.device_caps, caps);
    node.Save();
    EXPECT_FALSE(absl::StrContains(Read(file()), "absent")) << Read(file());
  }
}

TEST_F(SettingsStoreTest, UnreadableFileIsNamedAndStays) {
  struct Case {
    const char* name;
    std::function<void(const std::string& path)> make;
  };
  const auto with = [](const char* text) {
    return [text](const std::string& path) { std::ofstream(path) << text; };
  };
  const Case cases[] = {
      {"half a file", with("{\"pools\": [{\"pool\": \"one\"")},
      {"empty", with("")},
      {"no JSON", with("drained = true")},
      {"of a later version", with("{\"quotas\": [1]}")},
      {"another type", with("{\"devices\": [{\"uuid\": 3}]}")},
      {"a folder", [](const std::string& path) { ::mkdir(path.c_str(), 0700); }},
      {"a FIFO", [](const std::string& path) { ::mkfifo(path.c_str(), 0600); }},
      {"sparse",
       [](const std::string& path) {
         std::ofstream(path).close();
         std::filesystem::resize_file(path, 1ULL << 32);
       }},
      {"a link", [](const std::string& path) { ::symlink("/dev/null", path.c_str()); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    std::filesystem::remove_all(file());
    c.make(file());
    Node node(folder_);
    const absl::Status loaded = node.Load();
    EXPECT_FALSE(loaded.ok());
    EXPECT_TRUE(absl::StrContains(loaded.message(), file())) << loaded;
    EXPECT_EQ(node.Settings(), "");
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::symlink_status(file())));
    // The store renames it before another file takes its place.
    std::filesystem::remove_all(file() + ".unreadable");
    ASSERT_TRUE(node.Drain(0, "fan").ok());
    node.Save();
    EXPECT_EQ(node.fault(), "");
    EXPECT_TRUE(absl::StrContains(Read(file()), "fan"));
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::symlink_status(file() + ".unreadable")));
  }
}

TEST_F(SettingsStoreTest, RejectedSettingStaysInFile) {
  std::ofstream(file()) << R"({"devices": [{"uuid": "GPU-a", "drain_reason": "fan", "budget_bytes": 1099511627776}]})";
  Node node(folder_);
  ASSERT_TRUE(node.Load().ok());
  EXPECT_EQ(node.core().ListDevices()[0].drain_reason, "fan");
  EXPECT_EQ(node.core().ListDevices()[0].budget, MiB(16));
  node.Save();
  EXPECT_TRUE(absl::StrContains(Read(file()), "1099511627776")) << Read(file());
}

TEST_F(SettingsStoreTest, FailedWriteIsShownAndRepeated) {
  const std::string folder = folder_ + "/state";
  std::ofstream(folder) << "in the folder's place";
  Node node(folder);
  EXPECT_TRUE(node.Load().ok());
  ASSERT_TRUE(node.Drain(0, "fan").ok());
  node.Save();
  EXPECT_TRUE(absl::StrContains(node.fault(), folder)) << node.fault();
  EXPECT_EQ(node.core().ListDevices()[0].drain_reason, "fan");
  std::filesystem::remove(folder);
  node.Save();
  EXPECT_EQ(node.fault(), "");
  EXPECT_TRUE(absl::StrContains(Read(folder + "/" + SettingsStore::kFileName), "GPU-a"));
}

TEST_F(SettingsStoreTest, DeletedOrChangedFileIsWrittenAgain) {
  const std::function<void()> damages[] = {[&] { std::filesystem::remove(file()); },
                                           [&] { std::filesystem::rename(file(), file() + ".gone"); },
                                           [&] { std::filesystem::resize_file(file(), 0); },
                                           [&] { std::ofstream(file()) << "{}"; },
                                           [&] {
                                             std::ofstream(folder_ + "/other") << "{}";
                                             std::filesystem::rename(folder_ + "/other", file());
                                           },
                                           // The store may write into a folder that is being emptied.
                                           [&] {
                                             std::filesystem::rename(folder_, folder_ + ".gone");
                                             std::filesystem::remove_all(folder_ + ".gone");
                                           }};
  for (const bool loaded : {false, true}) {
    Node node(folder_);
    ASSERT_TRUE(node.Load().ok());
    if (!loaded) ASSERT_TRUE(node.Drain(0, "fan").ok());
    node.Save();
    const std::string text = Read(file());
    ASSERT_TRUE(absl::StrContains(text, "fan"));
    for (const std::function<void()>& damage : damages) {
      damage();
      while (Read(file()) != text) node.Look();
      EXPECT_EQ(node.fault(), "");
    }
  }
}

TEST_F(SettingsStoreTest, LookMakesNoFileWithoutSettings) {
  {
    Node node(folder_);
    ASSERT_TRUE(node.Load().ok());
    node.Look();
    node.Save();
  }
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(SettingsStoreTest, FileIsReplacedAtomicallyForOwnerOnly) {
  ::umask(0);
  Node node(folder_);
  // The store does not write through another user's link.
  const std::string other = folder_ + "/other";
  ASSERT_EQ(::symlink(other.c_str(), (file() + ".new").c_str()), 0);
  ASSERT_TRUE(node.Drain(0, "fan").ok());
  node.Save();
  EXPECT_EQ(node.fault(), "");
  EXPECT_FALSE(std::filesystem::exists(other));
  struct stat status;
  ASSERT_EQ(::stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
}

}  // namespace
}  // namespace berth::service
