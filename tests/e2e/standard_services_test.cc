// gRPC's own services, which tools expect: health and reflection. Spoken in bytes, because their messages are
// not Berth's.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"
#include "tests/support/raw_client.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

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

// Waits for the one operation under way. Returns whether it went well.
bool Await(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue.Next(&tag, &ok) && ok;
}

// One request and one answer on a method of any shape.
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

TEST(StandardServicesTest, HealthSaysServing) {
  TestDaemon daemon;
  for (const char* const socket : {"berthd.sock", "admin.sock"}) {
    RawClient client = RawClient::Open(daemon.folder(), socket);
    // HealthCheckRequest{} and HealthCheckResponse{status: SERVING}.
    const absl::StatusOr<std::string> answer = Exchange(client, "/grpc.health.v1.Health/Check", "");
    ASSERT_TRUE(Ok(answer));
    EXPECT_EQ(*answer, "\x08\x01");
    // A service that there is not.
    const absl::StatusOr<std::string> unknown =
        Exchange(client, "/grpc.health.v1.Health/Check", "\x0a\x03xyz");
    EXPECT_TRUE(absl::IsNotFound(unknown.status())) << unknown.status();
  }
  daemon.ExpectBooksBack();
}

TEST(StandardServicesTest, ReflectionListsTheServices) {
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
  daemon.ExpectBooksBack();
}

TEST(StandardServicesTest, AnUnknownMethodIsUnimplemented) {
  TestDaemon daemon;
  {
    RawClient client = RawClient::Open(daemon.folder());
    const absl::StatusOr<std::string> answer = Exchange(client, "/berth.v1.PermitService/StealPermit", "");
    EXPECT_TRUE(absl::IsUnimplemented(answer.status())) << answer.status();
    // A request that is no message of its method's.
    const absl::StatusOr<std::string> garbage =
        Exchange(client, "/berth.v1.PermitService/AcquirePermit", std::string(100, '\xff'));
    EXPECT_FALSE(garbage.ok());
    EXPECT_TRUE(Ok(client.Call(&v1::PermitService::Stub::GetPool, v1::GetPoolRequest())));
  }
  daemon.ExpectBooksBack();
}

}  // namespace
}  // namespace berth::testing
