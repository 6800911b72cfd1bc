// LaunchRecorderPeer: lets a test record uses of made-up blocks that have no Mapping.

#ifndef CLIENT_SDK_FENCES_TESTING_LAUNCH_RECORDER_PEER_H_
#define CLIENT_SDK_FENCES_TESTING_LAUNCH_RECORDER_PEER_H_

#include <berth/launch_recorder.h>

#include "client/sdk/fences/fences.h"

namespace berth {

class LaunchRecorderPeer {
 public:
  static void RecordUse(LaunchRecorder& launch, const internal::Recordable& used, internal::UseAccess access) {
    launch.RecordUse(used, access);
  }
};

}  // namespace berth

#endif  // CLIENT_SDK_FENCES_TESTING_LAUNCH_RECORDER_PEER_H_
