#include "client/sdk/modules/session_modules.h"

#include <errno.h>
#include <string.h>

#include <utility>

#include <berth/error.h>

#include "berth/v1/module.grpc.pb.h"
#include "client/sdk/transport/call_limits.h"
#include "client/sdk/transport/duration.h"
#include "client/sdk/transport/side_channel.h"
#include "common/label.h"
#include "common/os/nonblocking_write.h"
#include "common/os/os_error.h"
#include "common/sha256.h"
#include "common/status_macros.h"

namespace berth::internal {
namespace {

// Number of requests to the node before the process compiles alone: a module may leave the cache on its way, or be
// corrupt.
constexpr int kMaxAttempts = 3;

// The node's answer: the module, or the right to compile it with an fd to write it to.
struct Answer {
  v1::ObtainModuleResponse response;
  UniqueFd fd;
};

absl::StatusOr<Answer> Ask(SessionCore& core, const WantedModule& wanted, const Digest& distrusted) {
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core.Begin());
  v1::ObtainModuleRequest request;
  open.Fill(request.mutable_request());
  request.set_key(std::string(wanted.key.bytes()));
  request.set_architecture(wanted.architecture);
  request.set_compiler(wanted.compiler);
  request.set_label(ToLabel(wanted.label));
  ToProto(wanted.max_wait, request.mutable_max_wait());
  if (!distrusted.empty()) request.set_distrusted_content(std::string(distrusted.bytes()));
  Answer answer;
  const CallLimits limits = CallLimits::Within(wanted.max_wait, wanted.cancellation);
  core.channel().Expect(open.sequence());
  const absl::Status status = core.Call(limits, [&](grpc::ClientContext* context) {
    return core.stubs().Of<v1::ModuleService>().ObtainModule(context, request, &answer.response);
  });
  if (!status.ok()) {
    core.channel().Abandon(open.sequence());
    open.Resolve(status);
    return status;
  }
  // The request stays open until the fd has arrived: a ForgetRequest until then passes the right to compile to the
  // next.
  absl::StatusOr<Arrival> arrival = core.Await(open.sequence(), core.DefaultLimits().deadline);
  BERTH_RETURN_IF_ERROR(arrival.status());
  open.Settle();
  answer.fd = std::move(arrival->fd);
  return answer;
}

absl::Status WriteTo(int place, absl::string_view bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written =
        PwriteWithoutSignal(place, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return OsError("pwrite(module)", errno);
    done += static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

// The right to compile a module. If the right is not used, the destructor gives it up for the next process.
class Right {
 public:
  Right(SessionCore& core, Answer answer) : core_(core), answer_(std::move(answer)) {}
  Right(const Right&) = delete;
  Right& operator=(const Right&) = delete;
  ~Right() {
    if (!used_) GiveUp("");
  }

  // Stores the module with the node. Errors: those of the daemon and of the system.
  absl::Status Store(absl::string_view bytes) {
    // The daemon must learn the size of a module that is too large, so that no other process waits for it.
    if (bytes.size() <= answer_.response.bytes()) BERTH_RETURN_IF_ERROR(WriteTo(answer_.fd.get(), bytes));
    BERTH_ASSIGN_OR_RETURN(OpenRequest open, core_.Begin());
    v1::StoreModuleRequest request;
    open.Fill(request.mutable_request());
    request.set_compile(answer_.response.compile());
    request.set_bytes(bytes.size());
    request.set_content(std::string(Sha256Of(bytes).bytes()));
    used_ = true;
    const absl::Status status = core_.Call(core_.DefaultLimits(), [&](grpc::ClientContext* context) {
      v1::StoreModuleResponse response;
      return core_.stubs().Of<v1::ModuleService>().StoreModule(context, request, &response);
    });
    open.Resolve(status);
    return status;
  }

  // Gives the right up. A nonempty `error` is the reason why no other process should compile.
  void GiveUp(const std::string& error) {
    used_ = true;
    core_
        .GiveBack([&](const OpenRequest& open) -> Attempt {
          v1::AbandonModuleRequest request;
          open.Fill(request.mutable_request());
          request.set_compile(answer_.response.compile());
          request.set_compile_error(error);
          return [this_core = &core_, request](grpc::ClientContext* context) {
            v1::AbandonModuleResponse response;
            return this_core->stubs().Of<v1::ModuleService>().AbandonModule(context, request, &response);
          };
        })
        .IgnoreError();
  }

 private:
  SessionCore& core_;
  const Answer answer_;
  bool used_ = false;
};

absl::StatusOr<ObtainedModule> CompileFor(SessionCore& core, Answer answer,
                                          absl::FunctionRef<absl::StatusOr<std::string>()> compile) {
  Right right(core, std::move(answer));
  absl::StatusOr<std::string> made = compile();
  if (IsCompileError(made.status())) right.GiveUp(GetErrorDetails(made.status())->metadata["value"]);
  BERTH_RETURN_IF_ERROR(made.status());
  const absl::Status stored = right.Store(*made);
  return ObtainedModule{
      .bytes = std::make_shared<const ModuleBytes>(*std::move(made)), .compiled = true, .alone = stored};
}

}  // namespace

bool IsCompileError(const absl::Status& status) {
  if (!IsRefusal(status, Reason::kInvalidField)) return false;
  return GetErrorDetails(status)->metadata["field"] == "source";
}

absl::StatusOr<ObtainedModule> ObtainModule(SessionCore& core, const WantedModule& wanted,
                                            absl::FunctionRef<absl::StatusOr<std::string>()> compile) {
  absl::Status why;
  Digest distrusted;
  for (int attempt = 1; attempt <= kMaxAttempts; ++attempt) {
    absl::StatusOr<Answer> answer = Ask(core, wanted, distrusted);
    if (answer.ok() && answer->response.compile() != 0) {
      return CompileFor(core, *std::move(answer), compile);
    }
    if (answer.ok()) {
      Digest content;
      if (answer->response.content().size() == Digest::kBytes) {
        memcpy(content.bits.data(), answer->response.content().data(), Digest::kBytes);
      }
      absl::StatusOr<std::shared_ptr<const ModuleBytes>> bytes =
          ModuleBytes::Map(answer->fd, answer->response.bytes(), content);
      if (bytes.ok()) return ObtainedModule{.bytes = *std::move(bytes)};
      if (absl::IsDataLoss(bytes.status())) distrusted = content;
      answer = bytes.status();
    }
    why = answer.status();
    if (IsCompileError(why) || absl::IsCancelled(why)) return why;
    if (!absl::IsNotFound(why) && !absl::IsDataLoss(why)) break;
  }
  BERTH_ASSIGN_OR_RETURN(std::string made, compile());
  return ObtainedModule{
      .bytes = std::make_shared<const ModuleBytes>(std::move(made)), .compiled = true, .alone = why};
}

}  // namespace berth::internal
