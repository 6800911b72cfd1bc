#include "tests/sim/effect_digest.h"

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include <berth/error.h>

#include "daemon/base/archive.h"

namespace berth::core {
namespace {

class EffectWriter {
 public:
  explicit EffectWriter(std::string* out) : archive_(out) {}

  void operator()(const Reply& reply) {
    archive_(reply.call);
    Write(reply.response.status());
    if (reply.response.ok()) archive_(*reply.response);
  }
  void operator()(const CreateBlock& create) {
    archive_(create.device, create.worker_kind, create.block, create.bytes);
  }
  void operator()(const ReleaseBlock& release) {
    archive_(release.device, release.worker_kind, release.block, release.lost);
  }
  void operator()(const MakeFencePage& page) { archive_(page.channel); }
  void operator()(const DropFencePage& page) { archive_(page.channel); }
  void operator()(const Deliver& deliver) { archive_(deliver); }
  void operator()(const CloseChannel& close) { archive_(close.channel); }
  void operator()(const DropChannel& drop) { archive_(drop.channel); }
  void operator()(const DropSession& drop) { archive_(drop.session); }
  void operator()(const SendWorkerCommand& send) { archive_(send.device, send.command, send.worker_kind); }
  void operator()(const DevicesChanged&) {}
  void operator()(LogRecord record) {
    record.message.clear();
    archive_(record);
  }
  void operator()(const LeaseRecord& lease) {
    archive_(lease.kind, lease.id, lease.session, lease.tenant, lease.process, lease.label, lease.pool, lease.units,
             lease.bytes, lease.devices, lease.granted_at, lease.waited, lease.end, lease.ended_at, lease.held);
  }
  void operator()(const ModuleWork& work) {
    const ModuleRecord& record = work.record;
    archive_(work.what, work.module, work.compile, record.tenant, record.key, record.architecture, record.compiler,
             record.label, record.bytes, record.content, record.create_time);
  }
  void operator()(const LookAtProcesses& look) {
    for (const LookAtProcesses::Process& process : look.processes) archive_(process.channel, process.pid);
  }

 private:
  void Write(const absl::Status& status) {
    archive_(static_cast<int>(status.code()));
    const std::optional<ErrorDetails> details = GetErrorDetails(status);
    if (!details.has_value()) return;
    archive_(std::string(ReasonName(details->reason)), details->metadata, details->retry_after);
  }

  ArchiveWriter archive_;
};

}  // namespace

void EffectDigest::Add(const Effect& effect) {
  std::string bytes;
  ArchiveWriter archive(&bytes);
  archive(effect.number, static_cast<uint64_t>(effect.what.index()));
  std::visit(EffectWriter(&bytes), effect.what);
  effects_.Add(bytes);
}

}  // namespace berth::core
