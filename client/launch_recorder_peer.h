// LaunchRecorderPeer: notes uses of blocks that a test made up, which no Mapping stands for.

#ifndef CLIENT_LAUNCH_RECORDER_PEER_H_
#define CLIENT_LAUNCH_RECORDER_PEER_H_

#include "client/launch_recorder.h"

namespace berth {

class LaunchRecorderPeer {
 public:
  static void Note(LaunchRecorder& launch, const internal::Recordable& used, internal::UseAccess access) {
    launch.Note(used, access);
  }
};

}  // namespace berth

#endif  // CLIENT_LAUNCH_RECORDER_PEER_H_
