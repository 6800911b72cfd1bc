#include "daemon/core/sessions/mailbox.h"

#include <memory>
#include <string>
#include <vector>

#include "daemon/core/testing/copy_records.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

constexpr ChannelId kA(1), kB(2), kC(3);

Deliver Fd(ChannelId channel, uint64_t import) {
  return {.channel = channel, .delivery = {.what = attach::DeliveryKind::kBlock, .import = import}};
}

Deliver Recall(ChannelId channel, uint64_t block) {
  return {.channel = channel, .delivery = {.what = attach::DeliveryKind::kRecall, .block = block}};
}

class MailboxTest : public ::testing::Test {
 protected:
  void Open(uint64_t per_channel, uint64_t per_tenant) {
    boxes_ = std::make_unique<Mailboxes>(per_channel, per_tenant, &journal_);
    boxes_->Open(kA, {.uid = 1});
    boxes_->Open(kB, {.uid = 1});
    boxes_->Open(kC, {.uid = 2});
  }
  void Post(Deliver deliver) { boxes_->Post(std::move(deliver), &sends_); }
  void Acknowledge(ChannelId channel, uint64_t number) { boxes_->Acknowledge(channel, number, &sends_); }
  // Returns the deliveries sent since the last call, as "channel#number:import" or "channel#number:-block".
  std::string Sent() {
    std::string sent;
    for (const Deliver& deliver : sends_) {
      const bool fd = deliver.delivery.what == attach::DeliveryKind::kBlock;
      sent += (sent.empty() ? "" : " ") + std::to_string(deliver.channel.value()) + "#" +
              std::to_string(deliver.delivery.number) + ":" + (fd ? "" : "-") +
              std::to_string(fd ? deliver.delivery.import : deliver.delivery.block);
    }
    sends_.clear();
    EXPECT_TRUE(boxes_->CheckInvariants().ok()) << boxes_->CheckInvariants();
    return sent;
  }

  Journal journal_;
  std::unique_ptr<Mailboxes> boxes_;
  std::vector<Deliver> sends_;
};

TEST_F(MailboxTest, DeliveriesAreNumberedPerChannelFrom1) {
  Open(8, 64);
  Post(Fd(kA, 1));
  Post(Recall(kA, 5));
  Post(Fd(kB, 2));
  EXPECT_EQ(Sent(), "1#1:1 1#2:-5 2#1:2");
}

TEST_F(MailboxTest, FdsBeyondWindowWaitInOrderBeforeRecalls) {
  Open(2, 64);
  for (uint64_t i = 1; i <= 4; ++i) Post(Fd(kA, i));
  Post(Recall(kA, 9));
  EXPECT_EQ(Sent(), "1#1:1 1#2:2");
  EXPECT_EQ(boxes_->Queued(kA), 3);
  Acknowledge(kA, 1);
  EXPECT_EQ(Sent(), "1#3:3");
  Acknowledge(kA, 1);
  Acknowledge(kA, 99);
  EXPECT_EQ(Sent(), "");
  Acknowledge(kA, 3);
  EXPECT_EQ(Sent(), "1#4:4 1#5:-9");
  EXPECT_EQ(boxes_->Queued(kA), 0);
}

TEST_F(MailboxTest, RecallsNeedNoWindow) {
  Open(1, 1);
  Post(Fd(kA, 1));
  Post(Recall(kA, 9));
  Post(Recall(kB, 9));
  EXPECT_EQ(Sent(), "1#1:1 1#2:-9 2#1:-9");
}

TEST_F(MailboxTest, UnreadMailboxSendsNoMoreThanWindow) {
  Open(8, 64);
  constexpr uint64_t kWindow = Mailboxes::kUnacknowledgedPerChannel;
  for (uint64_t block = 1; block <= kWindow + 10; ++block) Post(Recall(kA, block));
  EXPECT_EQ(sends_.size(), kWindow);
  EXPECT_EQ(boxes_->Queued(kA), 10);
  Sent();
  Acknowledge(kA, 3);
  EXPECT_EQ(sends_.size(), 3u);
  EXPECT_EQ(sends_.back().delivery.block, kWindow + 3);
  Acknowledge(kA, kWindow);
  EXPECT_EQ(boxes_->Queued(kA), 0);
}

TEST_F(MailboxTest, ChannelsOfTenantTakeTurnsAtItsWindow) {
  Open(2, 2);
  Post(Fd(kA, 1));
  Post(Fd(kA, 2));
  Post(Fd(kB, 3));
  Post(Fd(kB, 4));
  Post(Fd(kA, 5));
  Post(Fd(kC, 6));
  EXPECT_EQ(Sent(), "1#1:1 1#2:2 3#1:6");
  Acknowledge(kA, 1);
  EXPECT_EQ(Sent(), "2#1:3");
  Acknowledge(kA, 2);
  EXPECT_EQ(Sent(), "2#2:4");
  Acknowledge(kB, 2);
  EXPECT_EQ(Sent(), "1#3:5");
}

TEST_F(MailboxTest, ClosedMailboxNamesUnsentImportsAndFreesWindow) {
  Open(2, 2);
  for (uint64_t i = 1; i <= 3; ++i) Post(Fd(kA, i));
  Post(Recall(kA, 9));
  Post(Fd(kB, 4));
  Sent();
  EXPECT_EQ(boxes_->Close(kA, &sends_), std::vector<ImportId>{ImportId(3)});
  EXPECT_EQ(Sent(), "2#1:4");
  EXPECT_TRUE(boxes_->Close(kA, &sends_).empty());
  Post(Fd(kA, 7));
  Acknowledge(kA, 1);
  EXPECT_EQ(Sent(), "");
  EXPECT_EQ(boxes_->size(), 2);
}

TEST_F(MailboxTest, OnlyQueuedFdIsWithdrawn) {
  Open(1, 64);
  for (uint64_t i = 1; i <= 3; ++i) Post(Fd(kA, i));
  Post(Recall(kA, 9));
  Sent();
  EXPECT_FALSE(boxes_->Withdraw(kA, ImportId(1), &sends_));
  EXPECT_TRUE(boxes_->Withdraw(kA, ImportId(3), &sends_));
  EXPECT_TRUE(boxes_->Withdraw(kA, ImportId(2), &sends_));
  // The delivery that waited behind it is sent.
  EXPECT_EQ(Sent(), "1#2:-9");
  EXPECT_FALSE(boxes_->Withdraw(kA, ImportId(2), &sends_));
}

TEST_F(MailboxTest, WithdrawnFdLosesItsTurn) {
  Open(2, 1);
  Post(Fd(kA, 1));
  Post(Fd(kB, 2));
  Post(Fd(kB, 3));
  Sent();
  EXPECT_TRUE(boxes_->Withdraw(kB, ImportId(2), &sends_));
  EXPECT_TRUE(boxes_->Withdraw(kB, ImportId(3), &sends_));
  Acknowledge(kA, 1);
  EXPECT_EQ(Sent(), "");
  Post(Fd(kB, 4));
  EXPECT_EQ(Sent(), "2#1:4");
}

// Restores the records of `from` in mailboxes with the same channels.
void Restore(const Mailboxes& from, Mailboxes* to) {
  CopyRecords(from, to);
  to->FinishRestoring();
}

TEST_F(MailboxTest, RestoredMailboxResendsInOrder) {
  Open(2, 3);
  for (uint64_t i = 1; i <= 4; ++i) Post(Fd(kA, i));
  Post(Recall(kA, 9));
  for (uint64_t i = 5; i <= 6; ++i) Post(Fd(kB, i));
  EXPECT_EQ(Sent(), "1#1:1 1#2:2 2#1:5");
  Acknowledge(kA, 1);
  EXPECT_EQ(Sent(), "2#2:6") << "B is in line for the tenant's capacity before A's next";
  const std::unique_ptr<Mailboxes> before = std::move(boxes_);
  Open(2, 3);
  Restore(*before, boxes_.get());
  Post(Recall(kC, 7));
  EXPECT_EQ(Sent(), "") << "before what was sent before";
  boxes_->Resume([](const Deliver& deliver) { return deliver.delivery.import != 6; }, &sends_);
  EXPECT_EQ(Sent(), "1#2:2 2#1:5 3#1:-7");
  EXPECT_EQ(boxes_->Queued(kA), 3u);
  Acknowledge(kB, 2);
  EXPECT_EQ(Sent(), "1#3:3");
  Acknowledge(kA, 3);
  EXPECT_EQ(Sent(), "1#4:4 1#5:-9");
}

TEST_F(MailboxTest, NumbersContinueAfterRestore) {
  Open(8, 64);
  Post(Recall(kA, 1));
  Acknowledge(kA, 1);
  const std::unique_ptr<Mailboxes> before = std::move(boxes_);
  Open(8, 64);
  Restore(*before, boxes_.get());
  sends_.clear();
  boxes_->Resume([](const Deliver&) { return true; }, &sends_);
  Post(Recall(kA, 2));
  EXPECT_EQ(Sent(), "1#2:-2");
}

TEST_F(MailboxTest, InvalidRecordsAreRejected) {
  Open(8, 64);
  Deliver sent = Recall(kA, 1);
  sent.delivery.number = 3;
  std::string row;
  ArchiveWriter writer(&row);
  writer(sent);
  // A record without an open mailbox; a record numbered past the last number.
  for (const ChannelId channel : {ChannelId(9), kA}) {
    ArchiveReader reader(row);
    boxes_->ReadRecord(KeyOf(RecordKind::kDelivery, channel.value(), 1), reader);
    EXPECT_TRUE(reader.failed());
  }
}

}  // namespace
}  // namespace berth::core
