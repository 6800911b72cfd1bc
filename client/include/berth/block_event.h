// BlockEvent: the end of a block that the process did not ask for.

#ifndef BERTH_BLOCK_EVENT_H_
#define BERTH_BLOCK_EVENT_H_

#include <berth/end_notice.h>

namespace berth {

// The end of a block in this process. A mapping of the block stays valid, and the process may read and write it, until
// the process destroys the Block and its mappings.
struct BlockEvent {
  enum What {
    // The data is gone: other processes, and later imports, do not see this memory any more. `end` gives the reason.
    // kStateLost: the daemon that held the memory ended. kMemoryLost: the device was reset, lost or dropped, or the
    // context worker of a CUDA_IPC block ended.
    kLost = 1,
    // Another process or an operator freed the block. The memory waits for this process.
    kFreed = 2,
    // The session is over for this process. `end` gives the reason and the actor.
    kEnded = 3,
  };
  What what = kLost;
  EndNotice end = {};
};

}  // namespace berth

#endif  // BERTH_BLOCK_EVENT_H_
