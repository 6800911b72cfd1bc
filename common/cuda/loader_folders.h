// LoaderFolders() lists the folders of shared libraries on this machine.

#ifndef COMMON_CUDA_LOADER_FOLDERS_H_
#define COMMON_CUDA_LOADER_FOLDERS_H_

#include <string>
#include <vector>

namespace berth::cuda {

// Returns the folders in which the loader looks for a library: those of LD_LIBRARY_PATH and of the processor
// architecture. Adds those that installers of the driver add to the loader's cache.
std::vector<std::string> LoaderFolders();

}  // namespace berth::cuda

#endif  // COMMON_CUDA_LOADER_FOLDERS_H_
