#include "absl/strings/str_cat.h"
#include "berth/v1/admin.pb.h"
#include "client/cli/format.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {

void AddReap(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("reap", "Retry failed releases of memory (operator)");
  verb.Runs([&globals] {
    return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
      BERTH_ASSIGN_OR_RETURN(const v1::ReapBlocksResponse answer, inspector.ReapBlocks());
      return Show(globals, answer, [&] {
        return absl::StrCat("retried ", answer.tried_blocks(), " blocks, ", FormatCount(answer.tried_bytes()),
                            "; released ", answer.returned_blocks(), ", ", FormatCount(answer.returned_bytes()), "\n");
      });
    });
  });
}

}  // namespace berth::cli
