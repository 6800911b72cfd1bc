#include "common/cuda/loader_folders.h"

#include <dlfcn.h>

namespace berth::cuda {

std::vector<std::string> LoaderFolders() {
  std::vector<std::string> folders;
  void* const program = ::dlopen(nullptr, RTLD_NOW);
  Dl_serinfo size = {};
  if (program != nullptr && ::dlinfo(program, RTLD_DI_SERINFOSIZE, &size) == 0) {
    std::vector<char> memory(size.dls_size);
    auto* const info = reinterpret_cast<Dl_serinfo*>(memory.data());
    *info = size;
    const bool listed = ::dlinfo(program, RTLD_DI_SERINFO, info) == 0;
    for (unsigned i = 0; listed && i < info->dls_cnt; ++i) folders.emplace_back(info->dls_serpath[i].dls_name);
  }
  if (program != nullptr) ::dlclose(program);
  folders.insert(folders.end(), {"/lib64", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64"});
  return folders;
}

}  // namespace berth::cuda
