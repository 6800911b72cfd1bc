// What people and programs are told of a permit that they hold by way of the command: that it is overdue, that it was
// taken away.

#ifndef CLIENT_CLI_PERMIT_NOTICE_H_
#define CLIENT_CLI_PERMIT_NOTICE_H_

#include <functional>
#include <string>

#include "CLI/CLI.hpp"
#include "client/permit.h"

namespace berth::cli {

// Adds --on-revoke to a verb: the name of the signal that `whom` is sent when the permit is taken away. `name` lives as
// long as `verb`.
CLI::Option* AddOnRevoke(CLI::App* verb, const std::string& whom, std::string* name);

// Says on stderr what happens to a permit. When it was taken away and `on_revoke` names a signal, calls `send` with its
// number before.
std::function<void(PermitEvent)> NoticeOfPermit(const std::string& on_revoke, std::function<void(int)> send);

}  // namespace berth::cli

#endif  // CLIENT_CLI_PERMIT_NOTICE_H_
