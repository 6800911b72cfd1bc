// gRPC's standard services, which tools expect: health and reflection. The test sends bytes, because their messages are
// not part of Berth.

#include <list>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/permit.grpc.pb.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

constexpr uid_t kGreedy = 1001;
constexpr uid_t kOther = 1002;

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  buffer.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

// Waits for the pending operation. Returns whether it succeeded.
bool Await(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue.Next(&tag, &ok) && ok;
}

// Sends one request and receives one answer, on a method of any shape.
absl::StatusOr<std::string> Exchange(RawClient& client, const std::string& method,
                                     const std::string& request) {
  grpc::GenericStub stub(client.grpc_channel());
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  grpc::ByteBuffer answer;
  bool answered = Await(queue);
  if (answered) {
    call->WriteLast(BufferOf(request), grpc::WriteOptions(), nullptr);
    answered = Await(queue);
  }
  if (answered) {
    call->Read(&answer, nullptr);
    answered = Await(queue);
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  Await(queue);
  queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {
  }
  if (!status.ok()) return FromGrpc(status);
  if (!answered) return absl::InternalError("no answer");
  return BytesOf(answer);
}

// A stream that stays open from its first answer until this object is destroyed.
class OpenStream {
 public:
  OpenStream(RawClient& client, const std::string& method, const std::string& request)
      : stub_(client.grpc_channel()), call_(stub_.PrepareCall(&context_, method, &queue_)) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    call_->StartCall(nullptr);
    if (!Await(queue_)) return;
    call_->Write(BufferOf(request), nullptr);
    if (!Await(queue_)) return;
    grpc::ByteBuffer answer;
    call_->Read(&answer, nullptr);
    served_ = Await(queue_);
  }
  ~OpenStream() { End(); }

  bool served() const { return served_; }
  // Returns the status with which the daemon or the client ended it.
  grpc::StatusCode End() {
    if (ended_) return status_.error_code();
    ended_ = true;
    if (served_) context_.TryCancel();
    call_->Finish(&status_, nullptr);
    Await(queue_);
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
    return status_.error_code();
  }

 private:
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::Status status_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool served_ = false;
  bool ended_ = false;
};

// A method whose streams stay open, and the limit of streams per user.
struct StreamMethod {
  const char* name;
  const char* method;
  const char* request;
  size_t share;
};
void PrintTo(const StreamMethod& method, std::ostream* out) { *out << method.name; }

class StandardStreamsTest : public ::testing::TestWithParam<StreamMethod> {};

TEST_P(StandardStreamsTest, UserLeavesStreamsToOthersAndOperators) {
  if (!IsRoot()) GTEST_SKIP() << "needs root: clients of several users";
  const char* const method = GetParam().method;
  const char* const request = GetParam().request;
  const size_t share = GetParam().share;
  TestDaemon daemon;
  {
    RawClient greedy = RawClient::Open(daemon.folder(), "berthd.sock", kGreedy);
    RawClient other = RawClient::Open(daemon.folder(), "berthd.sock", kOther);
    RawClient an_operator = RawClient::Open(daemon.folder(), "admin.sock");
    std::list<OpenStream> streams;
    while (streams.size() <= share && streams.emplace_back(greedy, method, request).served()) {
    }
    EXPECT_EQ(streams.size(), share + 1);
    EXPECT_EQ(streams.back().End(), grpc::StatusCode::CANCELLED);
    streams.pop_back();
    // The daemon serves other calls of that user, and other users.
    EXPECT_TRUE(Ok(Exchange(greedy, "/grpc.health.v1.Health/Check", "")));
    EXPECT_TRUE(OpenStream(other, method, request).served());
    EXPECT_TRUE(OpenStream(an_operator, method, request).served());
    // A stream that ends frees its place.
    streams.pop_back();
    EXPECT_TRUE(Eventually([&] { return OpenStream(greedy, method, request).served(); }));
  }
  daemon.ExpectAccountsBack();
}

INSTANTIATE_TEST_SUITE_P(
    Methods, StandardStreamsTest,
    ::testing::Values(StreamMethod{"HealthWatch", "/grpc.health.v1.Health/Watch", "", 64},
                      StreamMethod{"Reflection", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                   "\x3a\x01*", 12}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(StandardServicesTest, HealthReportsServing) {
  TestDaemon daemon;
  for (const char* const socket : {"berthd.sock", "admin.sock"}) {
    RawClient client = RawClient::Open(daemon.folder(), socket);
    // HealthCheckRequest{} and HealthCheckResponse{status: SERVING}.
    const absl::StatusOr<std::string> answer = Exchange(client, "/grpc.health.v1.Health/Check", "");
    ASSERT_TRUE(Ok(answer));
    EXPECT_EQ(*answer, "\x08\x01");
    // An unknown service.
    const absl::StatusOr<std::string> unknown =
        Exchange(client, "/grpc.health.v1.Health/Check", "\x0a\x03xyz");
    EXPECT_TRUE(absl::IsNotFound(unknown.status())) << unknown.status();
  }
  daemon.ExpectAccountsBack();
}

TEST(StandardServicesTest, ReflectionListsServices) {
  TestDaemon daemon;
  {
    RawClient client = RawClient::Open(daemon.folder());
    // ServerReflectionRequest{list_services: "*"}.
    const absl::StatusOr<std::string> answer =
        Exchange(client, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*");
    ASSERT_TRUE(Ok(answer));
    for (const char* const service :
         {"berth.v1.SessionService", "berth.v1.PermitService", "berth.v1.MemoryService",
          "berth.v1.DeviceService", "berth.v1.NodeService", "berth.v1.AdminService",
          "grpc.health.v1.Health"}) {
      EXPECT_TRUE(absl::StrContains(*answer, service)) << service;
    }
  }
  daemon.ExpectAccountsBack();
}

TEST(StandardServicesTest, UnknownMethodIsUnimplemented) {
  TestDaemon daemon;
  {
    RawClient client = RawClient::Open(daemon.folder());
    const absl::StatusOr<std::string> answer = Exchange(client, "/berth.v1.PermitService/StealPermit", "");
    EXPECT_TRUE(absl::IsUnimplemented(answer.status())) << answer.status();
    // A request that is no message of its method.
    const absl::StatusOr<std::string> garbage =
        Exchange(client, "/berth.v1.PermitService/AcquirePermit", std::string(100, '\xff'));
    EXPECT_FALSE(garbage.ok());
    EXPECT_TRUE(Ok(client.Call(&v1::PermitService::Stub::GetPool, v1::GetPoolRequest())));
  }
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
