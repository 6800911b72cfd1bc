// The rows of sessions, their processes, and what these asked and are told.

#include "daemon/core/core_impl.h"

namespace berth::core {

void Core::Impl::ListSessionRows(std::vector<RowKey>*) const {}
bool Core::Impl::WriteSessionRow(const RowKey&, ArchiveWriter&) const { return false; }
void Core::Impl::ReadSessionRow(const RowKey&, ArchiveReader& archive) { archive.Fail(); }
void Core::Impl::ResumeSessions(const Step&) {}

}  // namespace berth::core
