// Berth's version, as `berthd --version`, `berth --version` and NodeService report it.

#ifndef COMMON_VERSION_H_
#define COMMON_VERSION_H_

namespace berth {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace berth

#endif  // COMMON_VERSION_H_
