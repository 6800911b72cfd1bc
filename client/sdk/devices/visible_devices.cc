#include <berth/visible_devices.h>

#include <cstdlib>
#include <cstring>

namespace berth {

std::optional<std::string> VisibleDevices(absl::FunctionRef<const char*(const char*)> variable_of) {
  const char* const visible = variable_of("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return std::nullopt;
  const char* const own = variable_of(kDeviceVariable);
  if (own == nullptr || std::strcmp(visible, own) != 0) return visible;
  const char* const outer = variable_of(kVisibleVariable);
  return outer == nullptr ? std::nullopt : std::optional<std::string>(outer);
}

std::optional<std::string> VisibleDevices() { return VisibleDevices(std::getenv); }

}  // namespace berth
