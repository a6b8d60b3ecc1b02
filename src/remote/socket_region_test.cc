// Regions on several sockets, all in one process on soft0, whose sockets are only numbers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <string>

#include "src/base/runtime.h"
#include "src/remote/region_for_test.h"
#include "verbena/remote_consolidation.h"
#include "verbena/remote_sockets.h"

namespace verbena::remote {
namespace {

using testing::HasSubstr;

constexpr uint64_t kPartBytes = 8192;

// A back-end, which accepts connections on a thread of its own, and a front-end.
class Sockets {
 public:
  explicit Sockets(uint32_t sockets, uint32_t front_end_sockets = 0,
                   const ExposedRegionOptions& options = {.size_bytes = kPartBytes},
                   const SocketConnectionsOptions& connect_options = {}) {
    for (uint32_t i = 0; i < sockets; ++i) nodes_.push_back({must(Device::open("soft0"))});
    for (const test::Node& node : nodes_) devices_.push_back({&node.device, &node.domain});
    region_ = must(expose_sockets(devices_, options));
    listener_ =
        std::make_unique<ControlListener>(must(ControlListener::listen("127.0.0.1", 0, secret_)));
    accepting_ = start_thread("accepting", [this] { accept(); });
    std::vector<SocketDevice> front_end = devices_;
    front_end.resize(front_end_sockets == 0 ? sockets : front_end_sockets, devices_[0]);
    connections_ = connect_sockets(
        front_end, [this] { return connect(); }, connect_options);
  }
  ~Sockets() {
    connections_ = Status(StatusCode::kInternal, "gone");
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    { static_cast<void>(connect()); }  // wakes the accepting thread
    accepting_.join();
  }

  Result<std::unique_ptr<SocketConnections>>& connections() { return connections_; }
  SocketConnections* operator->() { return connections_->get(); }
  std::unique_ptr<RemoteRegion> open(uint32_t socket, const SocketRegionOptions& options = {}) {
    return must((*connections_)->open_region(socket, options));
  }
  // The back-end's memory.
  template <typename T>
  T at(uint32_t socket, uint64_t offset_bytes) {
    T value{};
    std::memcpy(&value, region_->part(socket).data() + offset_bytes, sizeof(T));
    return value;
  }
  const test::Node& node(uint32_t socket) const { return nodes_[socket]; }
  // The queue pairs of the back-end on each socket, once it has those of `front_end`.
  std::vector<uint32_t> accepted(uint32_t front_end) {
    std::unique_lock lock(mutex_);
    std::vector<uint32_t> each(region_->sockets());
    changed_.wait(lock, [&] {
      for (uint32_t i = 0; i < each.size(); ++i) each[i] = region_->part(i).connections();
      return std::accumulate(each.begin(), each.end(), 0u) == front_end;
    });
    return each;
  }
  // Those on one socket, once as many are left.
  bool has_left(uint32_t socket, uint32_t connections) {
    const uint64_t end_ns = now_ns() + kTestTimeoutNs;
    Waiter waiter;
    while (now_ns() < end_ns) {
      {
        const std::lock_guard lock(mutex_);
        if (region_->part(socket).remove_ended() == connections) return true;
      }
      waiter.idle();
    }
    return false;
  }
  // Ends the control connection of the proxy on that socket: the front-end takes it for the
  // back-end's end.
  void hang_up(size_t socket) {
    const std::lock_guard lock(mutex_);
    controls_.at(socket)->hang_up();
  }

 private:
  Result<ControlConnection> connect() {
    return ControlConnection::connect("127.0.0.1", listener_->port(), secret_, kTestTimeoutNs);
  }
  void accept() {
    for (;;) {
      auto control = std::make_unique<ControlConnection>(must(listener_->accept(kTestTimeoutNs)));
      const std::lock_guard lock(mutex_);
      if (ends_) return;
      controls_.push_back(std::move(control));
      static_cast<void>(region_->accept(*controls_.back()));  // the front-end says why not
      changed_.notify_all();
    }
  }

  JobSecret secret_ = JobSecret::random();
  std::deque<test::Node> nodes_;
  std::vector<SocketDevice> devices_;
  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::unique_ptr<ExposedSockets> region_;
  std::unique_ptr<ControlListener> listener_;
  std::mutex mutex_;  // of what the accepting thread changes
  Condition changed_;
  bool ends_ = false;
  Thread accepting_;
  Result<std::unique_ptr<SocketConnections>> connections_{
      Status(StatusCode::kInternal, "not connected")};
};

void post_all(RemoteRegion& region, uint64_t count, auto&& post, auto&& on_completion) {
  Waiter waiter;
  for (uint64_t posted = 0, done = 0; done < count;) {
    bool progress = false;
    if (posted < count) {
      const PostResult result = post(posted);
      ASSERT_NE(result, PostResult::kFailed) << region.error().message();
      if (result == PostResult::kPosted) {
        ++posted;
        progress = true;
      }
    }
    const uint32_t taken = region.poll(on_completion);
    ASSERT_TRUE(region.status().ok()) << region.status().message();
    done += taken;
    if (!progress && taken == 0) {
      waiter.idle();
    } else {
      waiter.progress();
    }
  }
}

// "memsem" III-D: s sockets, m machines. A machine has s * 2m queue pairs where all sockets
// connected to all would have s * s * 2m; both ends of a connection count.
TEST(SocketRegionTest, OnlyMatchedSocketsAreConnected) {
  for (uint32_t sockets : {1u, 2u, 3u}) {
    constexpr uint32_t kMachines = 2;
    uint32_t queue_pairs = 0;
    uint32_t with_own_connections = 0;
    for (uint32_t machine = 0; machine < kMachines; ++machine) {
      Sockets back_end(sockets);
      ASSERT_TRUE(back_end.connections().ok()) << back_end.connections().status().message();
      std::vector<std::unique_ptr<RemoteRegion>> threads;
      for (uint32_t thread = 0; thread < 2 * sockets; ++thread) {
        threads.push_back(back_end.open(thread % sockets, {.own_connection = false}));
      }
      EXPECT_EQ(back_end.accepted(back_end->queue_pairs()), std::vector<uint32_t>(sockets, 1));
      queue_pairs += 2 * back_end->queue_pairs();
      // One more for each thread that wants its own, and not one for each socket.
      for (uint32_t i = 0; i < sockets; ++i) threads.push_back(back_end.open(i));
      EXPECT_EQ(back_end.accepted(back_end->queue_pairs()), std::vector<uint32_t>(sockets, 2));
      with_own_connections += 2 * back_end->queue_pairs();
    }
    EXPECT_EQ(queue_pairs, sockets * 2 * kMachines);
    EXPECT_EQ(with_own_connections, 2 * sockets * 2 * kMachines);
  }
}

TEST(SocketRegionTest, PartsLieOneBehindTheOther) {
  Sockets sockets(2);
  auto region = sockets.open(0);
  EXPECT_EQ(region->size_bytes(), 2 * kPartBytes);
  EXPECT_EQ(sockets->offset_bytes(1), kPartBytes);
  EXPECT_EQ(sockets->size_bytes(1), kPartBytes);
  EXPECT_TRUE(region->writable());
  ASSERT_TRUE(region->write(RemotePointer<uint64_t>{64}, 1).ok());
  ASSERT_TRUE(region->write(RemotePointer<uint64_t>{kPartBytes + 64}, 2).ok());
  EXPECT_EQ(*region->read(RemotePointer<uint64_t>{64}), 1u);
  EXPECT_EQ(*region->read(RemotePointer<uint64_t>{kPartBytes + 64}), 2u);
  EXPECT_EQ(sockets.at<uint64_t>(0, 64), 1u);
  EXPECT_EQ(sockets.at<uint64_t>(1, 64), 2u);
}

TEST(SocketRegionTest, SynchronousCallsReachEveryPart) {
  Sockets sockets(2);
  for (bool own_connection : {true, false}) {
    auto region =
        sockets.open(1, {.region = {.copy_bytes = 512}, .own_connection = own_connection});
    for (uint64_t part : {0, 1}) {
      const uint64_t base = part * kPartBytes;
      const RemotePointer<uint64_t> word{base};
      ASSERT_TRUE(region->write(word, 7).ok());
      EXPECT_EQ(*region->fetch_and_add(word, 5), 7u);
      EXPECT_EQ(*region->compare_and_swap(word, 12, 30), 12u);
      EXPECT_EQ(*region->compare_and_swap(word, 12, 31), 30u);
      EXPECT_EQ(*region->read(word), 30u);
      // Longer than the buffer that it is copied through.
      std::string text(3000, 'a');
      for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 26);
      ASSERT_TRUE(region->write(base + 100, text).ok());
      std::string back(text.size(), ' ');
      ASSERT_TRUE(region->read(base + 100, std::span<char>(back)).ok());
      EXPECT_EQ(back, text);
    }
  }
}

// Three parts, so that completions of other parts come between those of one.
TEST(SocketRegionTest, CompletionsComeInTheOrderOfPosts) {
  Sockets sockets(3);
  auto region = sockets.open(1, {.region = {.pending = 8}});
  Random random(1);
  std::vector<uint64_t> parts(2000);
  for (uint64_t& part : parts) part = random.below(3);
  std::array<uint64_t, 3> sums{};
  uint64_t next = 0;
  post_all(
      *region, parts.size(),
      [&](uint64_t i) {
        return region->post_fetch_and_add({parts[i] * kPartBytes}, 1, /*token=*/i);
      },
      [&](const RemoteCompletion& done) {
        EXPECT_EQ(done.token, next);
        // Each part's operations happen in their order.
        EXPECT_EQ(done.value<uint64_t>(), sums[parts[next]]++);
        ++next;
      });
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(sockets.at<uint64_t>(i, 0), sums[i]);
}

TEST(SocketRegionTest, AReadFindsWhatWasWrittenBeforeOnItsPart) {
  Sockets sockets(2);
  auto region = sockets.open(0);
  const RemotePointer<uint64_t> word{kPartBytes + 8};
  post_all(
      *region, 2000,
      [&](uint64_t i) {
        return i % 2 == 0 ? region->post_write(word, i, i) : region->post_read(word, i);
      },
      [&](const RemoteCompletion& done) {
        if (done.token % 2 == 1) {
          EXPECT_EQ(done.value<uint64_t>(), done.token - 1);
        }
      });
}

TEST(SocketRegionTest, AFenceWaitsForOtherParts) {
  Sockets sockets(2);
  auto region = sockets.open(0);
  const auto fetch_and_add = [&](uint64_t part, Order order) {
    return region->post_fetch_and_add({part * kPartBytes}, 1, part, order);
  };
  ASSERT_EQ(fetch_and_add(1, Order::kPosted), PostResult::kPosted);
  ASSERT_EQ(fetch_and_add(1, Order::kAfterReads), PostResult::kPosted);  // the same part
  EXPECT_EQ(fetch_and_add(0, Order::kAfterReads), PostResult::kWouldBlock);
  EXPECT_EQ(region->statistics().would_block, 1u);
  Waiter waiter;
  while (region->outstanding() > 0) {
    if (region->poll([](const RemoteCompletion&) {}) == 0) waiter.idle();
  }
  EXPECT_EQ(fetch_and_add(0, Order::kAfterReads), PostResult::kPosted);
}

TEST(SocketRegionTest, BackPressureIsAValue) {
  Sockets sockets(2);
  auto region = sockets.open(0, {.region = {.pending = 4}});
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_EQ(region->post_write(RemotePointer<uint64_t>{(i % 2) * kPartBytes}, i, i),
              PostResult::kPosted);
  }
  for (uint64_t part : {0, 1}) {
    EXPECT_EQ(region->post_write(RemotePointer<uint64_t>{part * kPartBytes}, 9, 9),
              PostResult::kWouldBlock);
  }
  EXPECT_EQ(region->outstanding(), 4u);
  // Calls that wait have room all the same, and leave the others in place.
  EXPECT_EQ(*region->read(RemotePointer<uint64_t>{kPartBytes}), 3u);
  uint64_t done = 0;
  Waiter waiter;
  while (done < 4) {
    if (region->poll([&](const RemoteCompletion& each) { EXPECT_EQ(each.token, done++); }) == 0) {
      waiter.idle();
    }
  }
  EXPECT_EQ(region->statistics().writes, 4u);
  EXPECT_EQ(region->statistics().reads, 1u);
}

// More operations than the proxy may have under way.
TEST(SocketRegionTest, ThreadsShareABusyProxy) {
  Sockets sockets(2, 0, {.size_bytes = kPartBytes}, {.proxy_pending = 2});
  constexpr uint64_t kEach = 3000;
  std::vector<Thread> threads;
  for (uint32_t number = 0; number < 3; ++number) {
    threads.push_back(start_thread("front-end", [&sockets, number] {
      auto region = sockets.open(number % 2, {.own_connection = number == 0});
      uint64_t next = 0;
      post_all(
          *region, kEach,
          [&](uint64_t i) { return region->post_fetch_and_add({(i % 2) * kPartBytes}, 1, i); },
          [&](const RemoteCompletion& done) { EXPECT_EQ(done.token, next++); });
    }));
  }
  for (Thread& thread : threads) thread.join();
  EXPECT_EQ(sockets.at<uint64_t>(0, 0), 3 * kEach / 2);
  EXPECT_EQ(sockets.at<uint64_t>(1, 0), 3 * kEach / 2);
}

TEST(SocketRegionTest, SlicesAndVectorsReachEveryPart) {
  Sockets sockets(2);
  auto region = sockets.open(0, {.region = {.value_bytes = 128, .max_entries = 4}});
  for (uint32_t registered_on : {0u, 1u}) {
    std::array<char, 4096> local{};
    auto memory = must(MemoryRegion::create(sockets.node(registered_on).domain, local.data(),
                                            local.size(), IBV_ACCESS_LOCAL_WRITE));
    std::memcpy(local.data(), "one two three", 14);
    const uint64_t base = registered_on == 0 ? 0 : kPartBytes;
    for (uint64_t offset : {base, kPartBytes + 200}) {
      const std::array<LocalSlice, 3> from{
          LocalSlice{&memory, 8, 5}, {&memory, 3, 1}, {&memory, 0, 3}};
      const std::array<LocalSlice, 2> to{LocalSlice{&memory, 1000, 4}, {&memory, 2000, 5}};
      ASSERT_TRUE(region->writev(offset, from).ok()) << region->error().message();
      ASSERT_TRUE(region->readv(offset, to).ok());
      EXPECT_EQ(std::string(&local[1000], 4) + std::string(&local[2000], 5), "three one");
      std::memset(&local[1000], 0, 2000);
      post_all(
          *region, 3,
          [&](uint64_t i) {
            if (i == 0) return region->post_writev(offset + 64, from, i);
            if (i == 1) return region->post_readv(offset + 64, to, i);
            return region->post_read(offset + 64, LocalSlice{&memory, 3000, 9}, i);
          },
          [](const RemoteCompletion&) {});
      EXPECT_EQ(std::string(&local[1000], 4) + std::string(&local[2000], 5), "three one");
      EXPECT_EQ(std::string(&local[3000], 9), "three one");
    }
    // What the proxy's RNIC cannot reach is copied, and so has a limit.
    const LocalSlice large{&memory, 0, 129};
    const PostResult result = region->post_write(kPartBytes, large, 0);
    if (registered_on == 1) {
      EXPECT_EQ(result, PostResult::kPosted);
      Waiter waiter;
      while (region->poll([](const RemoteCompletion&) {}) == 0) waiter.idle();
    } else {
      EXPECT_EQ(result, PostResult::kFailed);
      EXPECT_THAT(region->error().message(),
                  HasSubstr("129 bytes for another socket do not fit the buffer of 128 bytes"));
    }
  }
}

// What is kept of a block is written as a whole, and no operation reaches into two parts.
TEST(SocketRegionTest, BlocksAreConsolidatedWhereTheyLieInOnePart) {
  Sockets sockets(2, 0, {.size_bytes = 1000});
  ASSERT_TRUE(sockets.connections().ok());
  const auto region = sockets.open(0, {.region = {.value_bytes = 1024}});
  const auto refused = ConsolidatedRegion::create(*region, {.block_bytes = 64});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("a part of the region ends at offset 1000"));

  Sockets whole(3, 0, {.size_bytes = 1024});
  ASSERT_TRUE(whole.connections().ok());
  const auto parts = whole.open(0, {.region = {.value_bytes = 1024}});
  auto hot = must(ConsolidatedRegion::create(*parts, {.block_bytes = 1024, .exclusive = true}));
  const std::vector<char> bytes(1500, 'x');
  ASSERT_TRUE(hot->write(700, bytes).ok());
  ASSERT_TRUE(hot->flush().ok());
  EXPECT_EQ(whole.at<char>(0, 699), 0);
  EXPECT_EQ(whole.at<char>(1, 0), 'x');
  EXPECT_EQ(whole.at<char>(2, 151), 'x');
  EXPECT_EQ(whole.at<char>(2, 152), 0);
}

TEST(SocketRegionTest, WhatMayNotBeIsRefusedBeforeItHappens) {
  Sockets sockets(2, 0, {.size_bytes = kPartBytes, .writable = false});
  auto region = sockets.open(0);
  EXPECT_FALSE(region->writable());
  const auto refused = [&](PostResult result, StatusCode code, const char* text) {
    EXPECT_EQ(result, PostResult::kFailed);
    EXPECT_EQ(region->error().code(), code);
    EXPECT_THAT(region->error().message(), HasSubstr(text));
  };
  for (uint64_t part : {0, 1}) {
    refused(region->post_write(RemotePointer<uint64_t>{part * kPartBytes}, 1, 0),
            StatusCode::kPermissionDenied, "read only");
    refused(region->post_read(part * kPartBytes, 65, 0), StatusCode::kInvalidArgument, "65 bytes");
  }
  refused(region->post_read(kPartBytes - 4, 8, 0), StatusCode::kInvalidArgument,
          "not all inside of one part");
  refused(region->post_read(UINT64_MAX - 3, 8, 0), StatusCode::kInvalidArgument,
          "not all inside of one part");
  refused(region->post_read(kPartBytes, LocalSlice{nullptr, 0, 8}, 0), StatusCode::kInvalidArgument,
          "names no memory");
  EXPECT_EQ(region->write(RemotePointer<uint64_t>{kPartBytes}, 1).code(),
            StatusCode::kPermissionDenied);
  EXPECT_TRUE(region->status().ok());
  EXPECT_EQ(*region->read(RemotePointer<uint64_t>{kPartBytes}), 0u);
}

TEST(SocketRegionTest, ClosesWithOperationsUnderWay) {
  Sockets sockets(2);
  for (int round = 0; round < 20; ++round) {
    auto region = sockets.open(0, {.own_connection = round % 2 == 0});
    // Registered memory that goes before the region, but after close().
    std::vector<char> local(4096);
    {
      auto memory = must(MemoryRegion::create(sockets.node(1).domain, local.data(), local.size(),
                                              IBV_ACCESS_LOCAL_WRITE));
      for (uint64_t i = 0; i < 16; ++i) {
        ASSERT_EQ(region->post_read(kPartBytes, LocalSlice{&memory, 0, 4096}, i),
                  PostResult::kPosted);
      }
      region->close();
    }
    EXPECT_EQ(region->status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(region->post_read(0, 8, 0), PostResult::kFailed);
    EXPECT_EQ(region->collect(), 0u);
    region->close();
  }
  // The proxies go on.
  auto region = sockets.open(0);
  EXPECT_TRUE(region->write(RemotePointer<uint64_t>{kPartBytes}, 1).ok());
}

TEST(SocketRegionTest, RegionsOutliveTheObjectThatOpenedThem) {
  Sockets sockets(2);
  auto region = sockets.open(0);
  sockets.connections() = Status(StatusCode::kInternal, "gone");
  EXPECT_TRUE(region->write(RemotePointer<uint64_t>{kPartBytes}, 5).ok());
  EXPECT_EQ(*region->read(RemotePointer<uint64_t>{kPartBytes}), 5u);
}

// Whoever waits for the proxy of a broken connection learns why, and so does who comes later.
TEST(SocketRegionTest, AProxyWithoutItsBackEndTellsThoseWhoWait) {
  Sockets sockets(2);
  auto waiting = sockets.open(0);
  auto untouched = sockets.open(1);
  auto later = sockets.open(0, {.own_connection = false});
  sockets.hang_up(1);  // of the proxy on socket 1
  const RemotePointer<uint64_t> word{kPartBytes};
  // The proxy checks a peer that is silent: not while operations succeed.
  for (uint64_t pause_ns = 1'000'000; waiting->write(word, 1).ok(); pause_ns *= 2) {
    sleep_ns(pause_ns);
  }
  EXPECT_EQ(waiting->status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(waiting->status().message(), HasSubstr("the back-end"));
  EXPECT_EQ(waiting->post_write(RemotePointer<uint64_t>{0}, 1, 0), PostResult::kFailed);

  ASSERT_EQ(later->post_write(word, 1, 0), PostResult::kPosted);
  ASSERT_EQ(later->post_write(RemotePointer<uint64_t>{0}, 1, 1), PostResult::kPosted);
  Waiter waiter;
  while (later->status().ok()) {
    later->collect();
    waiter.idle();
  }
  EXPECT_EQ(later->status().message(), waiting->status().message());
  // Its own connection is another one.
  EXPECT_TRUE(untouched->write(word, 2).ok());
  EXPECT_EQ(sockets.at<uint64_t>(1, 0), 2u);
}

// One part has failed, and operations on the other one are under way.
TEST(SocketRegionTest, ClosesWhatWorksAfterAFailure) {
  Sockets sockets(2);
  auto region = sockets.open(0);
  std::vector<char> local(4096);
  auto memory = must(MemoryRegion::create(sockets.node(0).domain, local.data(), local.size(),
                                          IBV_ACCESS_LOCAL_WRITE));
  EXPECT_TRUE(sockets.has_left(0, 2));  // the proxy's, and the own one
  ASSERT_EQ(region->post_write(0, LocalSlice{&memory, 0, 4096}, 1), PostResult::kPosted);
  sockets.hang_up(1);
  // The proxy checks a peer that is silent: not while operations succeed.
  const RemotePointer<uint64_t> word{kPartBytes};
  for (uint64_t pause_ns = 1'000'000; region->write(word, 1).ok(); pause_ns *= 2) {
    sleep_ns(pause_ns);
  }
  EXPECT_EQ(region->status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(sockets.has_left(0, 2));
  region->close();
  EXPECT_TRUE(sockets.has_left(0, 1));
}

TEST(SocketRegionTest, AnotherNumberOfSocketsIsRefusedAtBothEnds) {
  Sockets sockets(2, 3);
  ASSERT_FALSE(sockets.connections().ok());
  EXPECT_THAT(sockets.connections().status().message(), HasSubstr("has 2 sockets"));
  EXPECT_THAT(sockets.connections().status().message(), HasSubstr("uses 3"));
}

TEST(SocketRegionTest, OptionsOutOfRangeAreRefused) {
  Sockets sockets(2);
  const auto refused = [](const auto& result, const char* text) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(result.status().message(), HasSubstr(text));
  };
  refused(sockets->open_region(2, {}), "choose 0 to 1");
  refused(sockets->open_region(0, {.region = {.pending = 0}}), "pending is 0");
  refused(connect_sockets({}, {}, {}), "0 devices");
  for (const uint32_t wrong : {0u, 4097u}) {
    bool connected = false;
    const auto connect = [&connected]() -> Result<ControlConnection> {
      connected = true;
      return Status(StatusCode::kUnavailable, "nobody is there");
    };
    const SocketDevice one{&sockets.node(0).device, &sockets.node(0).domain};
    refused(connect_sockets({&one, 1}, connect, {.proxy_pending = wrong}),
            fmt::format("proxy_pending is {}; choose 1 to 4096", wrong).c_str());
    EXPECT_FALSE(connected) << "no back-end has to wait for what cannot be";
  }
  refused(expose_sockets({}, {.size_bytes = 64}), "0 devices");
  const SocketDevice device{&sockets.node(0).device, &sockets.node(0).domain};
  refused(expose_sockets({&device, 1}, {.size_bytes = 64, .socket = 0}),
          "neither memory nor socket");
}

}  // namespace
}  // namespace verbena::remote
