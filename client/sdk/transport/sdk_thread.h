// SdkThread: marks a thread of the SDK or of gRPC while it runs code of the SDK or of the program. A session must not
// be destroyed there. Its destructor joins the SDK's threads. And gRPC 1.51 frees what its threads use with the last
// channel, also if one of them destroys that.

#ifndef CLIENT_SDK_TRANSPORT_SDK_THREAD_H_
#define CLIENT_SDK_TRANSPORT_SDK_THREAD_H_

namespace berth::internal {

// Marks the current thread during its lifetime.
class SdkThread {
 public:
  SdkThread() { ++depth_; }
  SdkThread(const SdkThread&) = delete;
  SdkThread& operator=(const SdkThread&) = delete;
  ~SdkThread() { --depth_; }

  // Whether the current thread is marked.
  static bool IsCurrent() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_SDK_THREAD_H_
