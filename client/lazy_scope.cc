#include "client/lazy_scope.h"

#include <mutex>

namespace berth {
namespace {

thread_local int depth = 0;

// libstdc++ leaves what std::call_once is about to call where its thread finds it, and takes it away afterwards. An
// inner one takes away the outer's, which is then not known any more.
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
