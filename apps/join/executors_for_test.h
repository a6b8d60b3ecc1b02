// Executors of a distributed join in this process, on soft0 or as nodes of a simulated cluster.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "join/join_for_test.h"
#include "src/base/runtime.h"
#include "src/device/verbs_for_test.h"
#include "verbena/apps/join.h"
#include "verbena/apps/shuffle.h"
#include "verbena/connection.h"

namespace verbena::join_app {

using test::must;

inline constexpr int64_t kTestTimeoutNs = 120'000'000'000;

struct ExecutorOptions {
  ShuffleReceiverOptions receiver;
  ShuffleSenderOptions sender;
  bool registered_rows = false;
  JoinOptions join;
};

// One of them. expose() in any order, then run() of all at once.
class ExecutorForTest {
 public:
  void expose(const test::Node& node, const JobSecret& secret, uint32_t number, uint32_t executors,
              ExecutorOptions options) {
    node_ = &node;
    secret_ = &secret;
    options_ = std::move(options);
    options_.receiver.receiver = options_.sender.sender = number;
    options_.receiver.receivers = options_.receiver.senders = executors;
    receiver_ = must(ShuffleReceiver::expose(node.device, node.domain, options_.receiver));
    listener_ =
        std::make_unique<ControlListener>(must(ControlListener::listen("127.0.0.1", 0, secret)));
    port_ = listener_->port();
  }
  // Connects to all, joins, and leaves.
  void run(const std::vector<ExecutorForTest>& all, const TestTable& left, const TestTable& right,
           uint64_t seed) {
    status_ = join(all, left, right, seed);
    sender_.reset();
    receiver_.reset();
    ended_ = true;
  }

  // Connects to all, and does something else.
  template <typename Body>
  void misbehave(const std::vector<ExecutorForTest>& all, const Body& body) {
    status_ = connect(all);
    if (status_.ok()) status_ = body(*sender_, *receiver_);
    sender_.reset();
    receiver_.reset();
    ended_ = true;
  }

  bool ended() const { return ended_; }
  const Status& status() const { return status_; }
  const JoinStatistics& statistics() const { return statistics_; }
  const TestTable& joined() const { return joined_; }

 private:
  Status connect(const std::vector<ExecutorForTest>& all) {
    Status accepted;
    Thread accepting = start_thread(
        "accept", [&] { accepted = receiver_->accept_all(*listener_, kTestTimeoutNs); });
    const Status opened = open(all);
    accepting.join();
    VERBENA_RETURN_IF_ERROR(opened);
    return accepted;
  }
  Status join(const std::vector<ExecutorForTest>& all, const TestTable& left,
              const TestTable& right, uint64_t seed) {
    VERBENA_RETURN_IF_ERROR(connect(all));
    Random random(seed);
    ArrowArrayStream left_stream = to_stream(left, random);
    ArrowArrayStream right_stream = to_stream(right, random);
    ArrowArrayStream result = {};
    const JoinExchange exchange = {*sender_, *receiver_,
                                   options_.registered_rows ? &node_->domain : nullptr};
    const auto done = join_shuffled(&left_stream, &right_stream, options_.join, exchange, &result);
    EXPECT_EQ(left_stream.release, nullptr);
    EXPECT_EQ(right_stream.release, nullptr);
    if (!done.ok()) {
      EXPECT_EQ(result.release, nullptr);
      return done.status();
    }
    statistics_ = *done;
    joined_ = from_stream(&result);
    return Status::ok_status();
  }
  Status open(const std::vector<ExecutorForTest>& all) {
    std::vector<ShuffleAddress> addresses;
    for (const ExecutorForTest& other : all) addresses.push_back({"127.0.0.1", other.port_});
    ShuffleSenderOptions options = options_.sender;
    options.handshake_timeout_ns = kTestTimeoutNs;
    auto sender = open_shuffle_sender(node_->device, node_->domain, addresses, *secret_, options);
    VERBENA_RETURN_IF_ERROR(sender.status());
    sender_ = std::move(*sender);
    return Status::ok_status();
  }

  const test::Node* node_ = nullptr;
  const JobSecret* secret_ = nullptr;
  ExecutorOptions options_;
  std::unique_ptr<ShuffleReceiver> receiver_;
  std::unique_ptr<ShuffleSender> sender_;
  std::unique_ptr<ControlListener> listener_;
  uint16_t port_ = 0;
  Status status_;
  JoinStatistics statistics_;
  TestTable joined_;
  bool ended_ = false;
};

// The rows of a table in so many parts, at random.
inline std::vector<TestTable> in_parts(const TestTable& table, uint32_t parts, Random& random) {
  std::vector<TestTable> shares(parts);
  for (TestTable& share : shares) {
    for (const TestColumn& column : table.columns) {
      share.columns.push_back({column.name, column.format, {}});
    }
  }
  for (size_t row = 0; row < table.rows(); ++row) {
    TestTable& share = shares[random.below(parts)];
    for (size_t i = 0; i < table.columns.size(); ++i) {
      share.columns[i].values.push_back(table.columns[i].values[row]);
    }
  }
  return shares;
}

// The rows of all executors' results.
inline std::vector<std::vector<Value>> sorted_rows(const std::vector<ExecutorForTest>& executors) {
  std::vector<std::vector<Value>> rows;
  for (const ExecutorForTest& executor : executors) {
    const auto part = sorted_rows(executor.joined());
    rows.insert(rows.end(), part.begin(), part.end());
  }
  std::ranges::sort(rows);
  return rows;
}

}  // namespace verbena::join_app
