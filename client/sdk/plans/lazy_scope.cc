#include <berth/lazy_scope.h>

#include <mutex>

namespace berth {
namespace {

thread_local int depth = 0;

// libstdc++ stores the callable of a running std::call_once in a thread-local variable, and clears it afterwards. A
// nested std::call_once clears the outer callable, which is then no longer detected.
bool InsideCallOnce() {
#if defined(__GLIBCXX__) && defined(_GLIBCXX_HAVE_TLS)
  return std::__once_callable != nullptr;
#else
  return false;
#endif
}

}  // namespace

LazyScope::LazyScope() { ++depth; }

LazyScope::~LazyScope() { --depth; }

bool LazyScope::Inside() { return depth > 0 || InsideCallOnce(); }

}  // namespace berth
