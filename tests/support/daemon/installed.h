// Installed: the daemon's program in a folder of the test, where the test can replace it.

#ifndef TESTS_SUPPORT_DAEMON_INSTALLED_H_
#define TESTS_SUPPORT_DAEMON_INSTALLED_H_

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/support/testing.h"

namespace berth::testing {

class Installed {
 public:
  Installed() : Installed(ProgramPath("daemon/berthd")) {}
  // Installs another program, until Install() replaces it.
  explicit Installed(const std::string& program) {
    if (::mkdtemp(folder_.data()) == nullptr) Fatal(absl::InternalError("mkdtemp"), folder_);
    Install(program);
  }
  Installed(const Installed&) = delete;
  Installed& operator=(const Installed&) = delete;
  ~Installed() { std::filesystem::remove_all(folder_); }

  // Replaces the file with a new copy of the daemon's program.
  void Install() const { Install(ProgramPath("daemon/berthd")); }
  std::string path() const { return folder_ + "/berthd"; }
  // Whether `pid` runs the current file.
  bool IsRunBy(pid_t pid) const {
    struct stat now = {};
    struct stat run = {};
    ::stat(path().c_str(), &now);
    return ::stat(absl::StrCat("/proc/", pid, "/exe").c_str(), &run) == 0 && run.st_ino == now.st_ino;
  }

 private:
  void Install(const std::string& program) const {
    std::filesystem::copy_file(std::filesystem::canonical(program), path() + ".new");
    std::filesystem::rename(path() + ".new", path());
  }

  std::string folder_ = "/tmp/berth-install-XXXXXX";
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_DAEMON_INSTALLED_H_
