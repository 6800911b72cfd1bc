// LazyScope: says that this thread is inside a lazy initialiser, whose body others wait for. Work that other threads
// do for it may wait for the very same initialiser, and then nobody ever ends; so what starts threads of its own and
// waits for them (client/scatter.h) refuses to run in there.
//
//   const Kernels& GetKernels() {
//     static absl::once_flag once;
//     absl::call_once(once, [] { berth::LazyScope lazy; kernels = Load(); });   // no ScatterBatched() in Load()
//     return kernels;
//   }
//
// The body of std::call_once is known without it, where the standard library is libstdc++. A function's static
// variable and absl::call_once cannot be looked into: their initialisers want the scope.

#ifndef CLIENT_LAZY_SCOPE_H_
#define CLIENT_LAZY_SCOPE_H_

namespace berth {

// On one thread; may be nested.
class LazyScope {
 public:
  LazyScope();
  LazyScope(const LazyScope&) = delete;
  LazyScope& operator=(const LazyScope&) = delete;
  ~LazyScope();

  // Whether the calling thread is in such a scope, or in the body of a std::call_once.
  static bool Inside();
};

}  // namespace berth

#endif  // CLIENT_LAZY_SCOPE_H_
