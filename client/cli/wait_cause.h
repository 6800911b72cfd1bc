// Why a request for permits waits, in words.

#ifndef CLIENT_CLI_WAIT_CAUSE_H_
#define CLIENT_CLI_WAIT_CAUSE_H_

#include <string>

#include "berth/v1/permit.pb.h"

namespace berth::cli {

// The end of a sentence: "0 of 2 free", "one permit is out that shuts all others out".
std::string DescribeCause(const v1::WaitExplanation& wait);

}  // namespace berth::cli

#endif  // CLIENT_CLI_WAIT_CAUSE_H_
