// HeldPermit is one acquisition of a permit together with the guards that share it. Nested acquires of the same thread
// take no RPC. The last guard, on any thread, gives the permit back exactly once.
//
// Each thread remembers its acquisitions in a short list of its own. A nested acquire takes one lookup in that list and
// one step of a thread-owned count (BiasedCount).

#ifndef CLIENT_SDK_PERMITS_HELD_PERMIT_H_
#define CLIENT_SDK_PERMITS_HELD_PERMIT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/sdk/permits/biased_count.h"
#include "client/sdk/permits/permit_watch.h"

namespace berth::internal {

// Lookup key of a held permit.
struct HeldPermitKey {
  // Address of the session; used for comparison only.
  const void* session = nullptr;
  absl::string_view pool;
  // Empty: the calling thread itself.
  absl::string_view holder_key;
};

// Thread-safe. Counts its guards and its references, and deletes itself with the last reference. The guards together
// hold one reference, the thread that remembers the held permit another. Guards can be added only while at least one
// exists: a held permit without guards is over, even while its thread still remembers it.
class HeldPermit {
 public:
  // Gives the acquisition back. The last guard calls it once, on that guard's thread.
  class Releaser {
   public:
    virtual ~Releaser() = default;
    virtual absl::Status Release() = 0;
    // Called when the holder key is given out while a guard is alive; on any thread, possibly more than once.
    virtual void Share() {}
  };

  // Makes a held permit with one guard, the caller's; the calling thread remembers it. `releaser` is destroyed after
  // its Release(). The daemon knows the held permit by `known_as`, or by its holder key where `known_as` is empty.
  static HeldPermit* Make(const HeldPermitKey& key, uint64_t units, std::unique_ptr<Releaser> releaser,
                          std::shared_ptr<const PermitRecord> record = nullptr, std::string known_as = "");
  // As Make(), but no thread remembers the held permit, so no acquire nests in it here. Requires: a holder key.
  static HeldPermit* MakeForNoThread(const HeldPermitKey& key, uint64_t units, std::unique_ptr<Releaser> releaser,
                                     std::shared_ptr<const PermitRecord> record = nullptr);

  // Adds a guard to a held permit that the calling thread remembers under `key`, if the held permit is still held, has
  // `units` and has not ended. Returns null otherwise.
  static HeldPermit* Nest(const HeldPermitKey& key, uint64_t units);

  // Drops one guard. The last guard gives the acquisition back and returns the status of the release: kAborted where
  // the permit had ended before. `this` may be deleted afterwards.
  absl::Status Drop() { return guards_.Drop() ? GiveBack() : absl::OkStatus(); }
  // Drops one guard. After the last guard the acquisition stays until the end of the session.
  void Leave();

  uint64_t units() const { return units_; }
  // The daemon's notices about the permit.
  bool overdue() const { return record_ != nullptr && record_->overdue.load(std::memory_order_acquire); }
  std::optional<EndNotice> end() const { return record_ == nullptr ? std::nullopt : record_->ended_by(); }
  const std::string& pool() const { return pool_; }
  // Never empty: the holder key of the thread that made the held permit, where no other key was given.
  const std::string& holder_key() const { return holder_key_; }
  // As holder_key(), for a party that is to nest under the key. Requires: a guard is alive.
  const std::string& Share() {
    releaser_->Share();
    return holder_key_;
  }
  // Number of guards alive; for tests and inspection.
  uint32_t depth() const { return guards_.value(); }

 private:
  friend class ThreadHeldPermits;
  HeldPermit(const HeldPermitKey& key, uint64_t units, std::unique_ptr<Releaser> releaser,
             std::shared_ptr<const PermitRecord> record, std::string known_as, bool remembered);
  bool Matches(const HeldPermitKey& key) const {
    return session_ == key.session && pool_ == key.pool &&
           (key.holder_key.empty() ? of_thread_ : holder_key_ == key.holder_key);
  }
  // Gives the acquisition back after the last guard.
  absl::Status GiveBack();
  void Unreference();

  const void* const session_;
  const std::string pool_;
  const std::string holder_key_;
  // Whether the held permit was made under the key of the thread that remembers it: then a lookup compares no text.
  const bool of_thread_;
  const uint64_t units_;
  const std::shared_ptr<const PermitRecord> record_;
  BiasedCount guards_;
  std::atomic<uint32_t> references_;
  // Used only by the last guard.
  std::unique_ptr<Releaser> releaser_;
};

// Returns the holder key of the calling thread. The key is unique among all threads on this node, including earlier
// ones.
const std::string& ThreadHolderKey();

}  // namespace berth::internal

#endif  // CLIENT_SDK_PERMITS_HELD_PERMIT_H_
