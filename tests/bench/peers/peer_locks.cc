#include "tests/bench/peers/peer_locks.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include <berth/permit.h>
#include <berth/session.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/sdk/transport/status_conversion.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "tests/bench/peers/etcd_lease.grpc.pb.h"
#include "tests/bench/peers/etcd_lock.grpc.pb.h"
#include "tests/bench/peers/redis_client.h"

namespace berth::bench {
namespace {

class BerthLock final : public PeerLock {
 public:
  explicit BerthLock(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  absl::Status Acquire() override {
    BERTH_ASSIGN_OR_RETURN(permit_, Permit::Acquire(session_));
    return absl::OkStatus();
  }
  absl::Status Release() override { return permit_->Release(); }

 private:
  const std::shared_ptr<Session> session_;
  std::optional<Permit> permit_;
};

// Patience for a server's start.
constexpr absl::Duration kStartPatience = absl::Seconds(20);

// As in redis-py's Lock.
constexpr absl::Duration kRedisPause = absl::Milliseconds(100);
constexpr char kFreeIfMine[] =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

class PollingRedisLock final : public PeerLock {
 public:
  PollingRedisLock(RedisClient client, std::string key) : client_(std::move(client)), key_(std::move(key)) {}
  absl::Status Acquire() override {
    while (true) {
      BERTH_ASSIGN_OR_RETURN(const std::string answer,
                             client_.Call({"SET", key_, mine_, "NX", "PX", "60000"}));
      if (answer == "OK") return absl::OkStatus();
      absl::SleepFor(kRedisPause);
    }
  }
  absl::Status Release() override { return client_.Call({"EVAL", kFreeIfMine, "1", key_, mine_}).status(); }

 private:
  RedisClient client_;
  const std::string key_;
  const std::string mine_ = absl::StrCat(::getpid());
};

class PoppedToken final : public PeerLock {
 public:
  PoppedToken(RedisClient client, std::string key) : client_(std::move(client)), key_(std::move(key)) {}
  absl::Status Acquire() override { return client_.Call({"BLPOP", key_, "0"}).status(); }
  absl::Status Release() override { return client_.Call({"RPUSH", key_, "token"}).status(); }

 private:
  RedisClient client_;
  const std::string key_;
};

class EtcdLock final : public PeerLock {
 public:
  EtcdLock(const std::string& port, std::string name)
      : name_(std::move(name)),
        channel_(grpc::CreateChannel("127.0.0.1:" + port, grpc::InsecureChannelCredentials())),
        lock_(v3lockpb::Lock::NewStub(channel_)) {}

  absl::Status MakeLease() {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(absl::ToChronoTime(absl::Now() + kStartPatience));
    etcdserverpb::LeaseGrantRequest request;
    request.set_ttl(600);
    etcdserverpb::LeaseGrantResponse response;
    BERTH_RETURN_IF_ERROR(
        FromGrpc(etcdserverpb::Lease::NewStub(channel_)->LeaseGrant(&context, request, &response)));
    lease_ = response.id();
    return absl::OkStatus();
  }
  absl::Status Acquire() override {
    grpc::ClientContext context;
    v3lockpb::LockRequest request;
    request.set_name(name_);
    request.set_lease(lease_);
    return FromGrpc(lock_->Lock(&context, request, &held_));
  }
  absl::Status Release() override {
    grpc::ClientContext context;
    v3lockpb::UnlockRequest request;
    request.set_key(held_.key());
    v3lockpb::UnlockResponse response;
    return FromGrpc(lock_->Unlock(&context, request, &response));
  }

 private:
  const std::string name_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v3lockpb::Lock::Stub> lock_;
  int64_t lease_ = 0;
  v3lockpb::LockResponse held_;
};

class FileLock final : public PeerLock {
 public:
  explicit FileLock(UniqueFd file) : file_(std::move(file)) {}
  absl::Status Acquire() override { return Flock(LOCK_EX); }
  absl::Status Release() override { return Flock(LOCK_UN); }

 private:
  absl::Status Flock(int operation) {
    return ::flock(file_.get(), operation) == 0 ? absl::OkStatus() : OsError("flock", errno);
  }
  const UniqueFd file_;
};

// Splits "PORT/NAME".
std::pair<std::string, std::string> Split(const std::string& where) {
  return absl::StrSplit(where, absl::MaxSplits('/', 1));
}

absl::StatusOr<RedisClient> ConnectRedis(const std::string& where) {
  int port = 0;
  if (!absl::SimpleAtoi(Split(where).first, &port)) return absl::InvalidArgumentError(where);
  return RedisClient::Connect(port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerLock>> ConnectLock(const std::string& kind, const std::string& where) {
  if (kind == "berth") {
    BERTH_ASSIGN_OR_RETURN(auto session, Session::Open({.folder = where, .timeout = absl::Minutes(1)}));
    return std::make_unique<BerthLock>(std::move(session));
  }
  if (kind == "redis" || kind == "blpop") {
    BERTH_ASSIGN_OR_RETURN(RedisClient client, ConnectRedis(where));
    if (kind == "blpop") return std::make_unique<PoppedToken>(std::move(client), where);
    return std::make_unique<PollingRedisLock>(std::move(client), where);
  }
  if (kind == "etcd") {
    auto lock = std::make_unique<EtcdLock>(Split(where).first, Split(where).second);
    BERTH_RETURN_IF_ERROR(lock->MakeLease());
    return lock;
  }
  if (kind == "flock") {
    UniqueFd file(::open(where.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file) return OsError(where, errno);
    return std::make_unique<FileLock>(std::move(file));
  }
  return absl::InvalidArgumentError(kind);
}

absl::Status PrepareLock(const std::string& kind, const std::string& where) {
  const absl::Time deadline = absl::Now() + kStartPatience;
  absl::Status status;
  do {
    status = absl::OkStatus();
    if (kind == "etcd") return ConnectLock(kind, where).status();
    if (kind != "redis" && kind != "blpop") return absl::OkStatus();
    absl::StatusOr<RedisClient> client = ConnectRedis(where);
    status = client.status();
    if (status.ok()) status = client->Call({"DEL", where}).status();
    if (status.ok() && kind == "blpop") status = client->Call({"RPUSH", where, "token"}).status();
    if (!status.ok()) absl::SleepFor(absl::Milliseconds(20));
  } while (!status.ok() && absl::Now() < deadline);
  return status;
}

}  // namespace berth::bench
