// LazyScope: marks that this thread is inside a lazy initialiser, whose completion other threads wait for. Worker
// threads that the initialiser waits for may themselves wait for the same initialiser: a deadlock. So functions that
// start threads and wait for them (berth/scatter.h) refuse to run inside a LazyScope.
//
//   const Kernels& GetKernels() {
//     static absl::once_flag once;
//     absl::call_once(once, [] { berth::LazyScope lazy; kernels = Load(); });   // no ScatterBatched() in Load()
//     return kernels;
//   }
//
// With libstdc++, the body of std::call_once is detected without a LazyScope. Initialisers of a function's static
// variable and of absl::call_once cannot be detected and need the scope.

#ifndef BERTH_LAZY_SCOPE_H_
#define BERTH_LAZY_SCOPE_H_

namespace berth {

// Marks one thread, the one that constructs it. May be nested.
class LazyScope {
 public:
  LazyScope();
  LazyScope(const LazyScope&) = delete;
  LazyScope& operator=(const LazyScope&) = delete;
  ~LazyScope();

  // Returns whether the calling thread is in a LazyScope, or in the body of a std::call_once.
  static bool Inside();
};

}  // namespace berth

#endif  // BERTH_LAZY_SCOPE_H_
