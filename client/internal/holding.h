// Holding is one acquisition of a permit and the guards that count in it: nested acquires of the same thread
// take no RPC, whichever guard goes last, on whatever thread, gives the permit back, exactly once.
//
// Each thread remembers what it acquired in a short list of its own, so that the nested case is one look at that list
// and a count of its own (BiasedCount).

#ifndef CLIENT_INTERNAL_HOLDING_H_
#define CLIENT_INTERNAL_HOLDING_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/internal/biased_count.h"
#include "client/internal/permit_watch.h"

namespace berth::internal {

// What a holding is found by.
struct HoldingKey {
  // The session, as an address only.
  const void* session = nullptr;
  absl::string_view pool;
  // Empty is the calling thread itself.
  absl::string_view holder_key;
};

// Thread-safe. Counts its guards and its references, and deletes itself with the last reference: the guards together
// hold one, the thread that remembers it another. The guards can only rise from one: a holding whose last guard went is
// over, even while its thread still remembers it.
class Holding {
 public:
  // Gives the acquisition back; called once, by the guard that goes last, on its thread.
  class Releaser {
   public:
    virtual ~Releaser() = default;
    virtual absl::Status Release() = 0;
    // Somebody was told the holder key while a guard was alive; on any thread, also more than once.
    virtual void Share() {}
  };

  // Starts with one guard, the caller's, and is remembered by the calling thread. `releaser` is destroyed
  // after its Release(). The daemon knows it by `known_as`, or by its holder key where that is empty.
  static Holding* Make(const HoldingKey& key, uint64_t units, std::unique_ptr<Releaser> releaser,
                       std::shared_ptr<const PermitRecord> record = nullptr, std::string known_as = "");
  // The same, remembered by no thread: nobody nests in it here. Requires: a holder key.
  static Holding* MakeForNoThread(const HoldingKey& key, uint64_t units, std::unique_ptr<Releaser> releaser,
                                  std::shared_ptr<const PermitRecord> record = nullptr);

  // Adds a guard to what the calling thread remembers under `key`, if it is still held, has `units` and was not
  // revoked; else null.
  static Holding* Nest(const HoldingKey& key, uint64_t units);

  // Drops one guard; the last gives the acquisition back and returns how that went. `this` may be gone
  // afterwards.
  absl::Status Drop() { return guards_.Drop() ? GiveBack() : absl::OkStatus(); }
  // Drops one guard; the last leaves the acquisition to the end of the session.
  void Leave();

  uint64_t units() const { return units_; }
  // What the daemon has said of its permit.
  bool overdue() const { return record_ != nullptr && record_->overdue.load(std::memory_order_acquire); }
  bool revoked() const { return record_ != nullptr && record_->revoked.load(std::memory_order_acquire); }
  const std::string& pool() const { return pool_; }
  // Never empty: that of the thread it was made on where no other was given.
  const std::string& holder_key() const { return holder_key_; }
  // The same for somebody who is to nest under it. Requires: a guard is alive.
  const std::string& Share() {
    releaser_->Share();
    return holder_key_;
  }
  // Guards alive; for tests and those who look.
  uint32_t depth() const { return guards_.value(); }

 private:
  friend class ThreadHoldings;
  Holding(const HoldingKey& key, uint64_t units, std::unique_ptr<Releaser> releaser,
          std::shared_ptr<const PermitRecord> record, std::string known_as, bool remembered);
  bool Matches(const HoldingKey& key) const {
    return session_ == key.session && pool_ == key.pool &&
           (key.holder_key.empty() ? of_thread_ : holder_key_ == key.holder_key);
  }
  // What the last guard does.
  absl::Status GiveBack();
  void Unreference();

  const void* const session_;
  const std::string pool_;
  const std::string holder_key_;
  // Made under the key of the thread that remembers it: found without comparing text.
  const bool of_thread_;
  const uint64_t units_;
  const std::shared_ptr<const PermitRecord> record_;
  BiasedCount guards_;
  std::atomic<uint32_t> references_;
  // Released by the last guard alone.
  std::unique_ptr<Releaser> releaser_;
};

// The holder key of the calling thread: unlike that of every other thread, also of earlier ones, on this
// node.
const std::string& ThreadHolderKey();

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_HOLDING_H_
