// The rows of blocks, imports, budgets, streams and uses.

#include "daemon/core/core_impl.h"

namespace berth::core {

void Core::Impl::ListMemoryRows(std::vector<RowKey>*) const {}
bool Core::Impl::WriteMemoryRow(const RowKey&, ArchiveWriter&) const { return false; }
void Core::Impl::ReadMemoryRow(const RowKey&, ArchiveReader& archive) { archive.Fail(); }
void Core::Impl::ResumeMemory(const Step&) {}

}  // namespace berth::core
