// The rows of pools, permits, plans, and who waits for them.

#include "daemon/core/core_impl.h"

namespace berth::core {

void Core::Impl::ListPermitRows(std::vector<RowKey>*) const {}
bool Core::Impl::WritePermitRow(const RowKey&, ArchiveWriter&) const { return false; }
void Core::Impl::ReadPermitRow(const RowKey&, ArchiveReader& archive) { archive.Fail(); }
void Core::Impl::ResumePermits(const Step&) {}

}  // namespace berth::core
