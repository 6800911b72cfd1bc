// What the broker is started with beside its vault's own environment: a heap of large pages (docs/design/0023).
//
// The C library asks the kernel for them (madvise) where a variable says so, which it reads once, before main(). Where
// the kernel has none it changes nothing. Not thread-safe, as nothing is that touches the environment.

#ifndef DAEMON_VAULT_BROKER_ENVIRONMENT_H_
#define DAEMON_VAULT_BROKER_ENVIRONMENT_H_

#include <string>
#include <vector>

namespace berth {

// "NAME=value" each, as ChildProcess::Start() takes it.
std::vector<std::string> BrokerEnvironment();

// Sets it in this process, for the program that it becomes. Returns whether that changed anything: what is set already
// stays as it is.
bool EnterBrokerEnvironment();
// Takes it out again, in a broker: whom it starts is started without.
void LeaveBrokerEnvironment();

}  // namespace berth

#endif  // DAEMON_VAULT_BROKER_ENVIRONMENT_H_
