#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/control/peers_for_test.h"
#include "verbena/connection.h"

namespace verbena {
namespace {

using testing::HasSubstr;

class ListenerTest : public QuietLogTest {};

TEST_F(ListenerTest, TheWrongSecretIsNamedOnBothSides) {
  set_log_level(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  {
    AcceptingListener listener;
    const Result<ControlConnection> refused =
        ControlConnection::connect("127.0.0.1", listener.port(), other_secret(), kLongNs);
    EXPECT_EQ(refused.status().code(), StatusCode::kPermissionDenied);
    EXPECT_THAT(refused.status().message(), HasSubstr("wrong secret"));
    listener.stop();
    EXPECT_TRUE(listener.accepted().empty());
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("verbena: warning: 127.0.0.1:"));
  EXPECT_THAT(log, HasSubstr("wrong secret: 127.0.0.1:"));
}

TEST_F(ListenerTest, AnotherVersionIsNamedToTheStranger) {
  AcceptingListener listener;
  for (const uint16_t version : {1, 9}) {
    Stranger stranger(listener.port());
    stranger.say(first_words(secret(), version));
    const std::optional<Preface> answer = stranger.hear_preface();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->kind, PrefaceKind::kRefusal);
    EXPECT_EQ(answer->refusal, Refusal::kWrongVersion);
    EXPECT_EQ(answer->version, kControlProtocolVersion);
  }
}

TEST_F(ListenerTest, GarbageIsAnsweredAndTheListenerGoesOn) {
  AcceptingListener listener;
  Stranger stranger(listener.port());
  stranger.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::optional<Preface> answer = stranger.hear_preface();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->refusal, Refusal::kNotAPeer);
  EXPECT_TRUE(stranger.hear(1).empty());
  EXPECT_TRUE(ControlConnection::connect("127.0.0.1", listener.port(), secret(), kLongNs).ok());
}

// The silent one could stay for an hour: a listener that waited for it would not get to the genuine
// peer.
TEST_F(ListenerTest, SilentStrangersDoNotBlockAGenuinePeer) {
  ControlListenerOptions options;
  options.handshake_timeout_ns = kHourNs;
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret(), options);
  Stranger silent(listener.port());
  Stranger half_said(listener.port());
  half_said.say("VERB");
  const Pair pair = connect_pair(listener);
  EXPECT_TRUE(silent.other_side_is_silent());
  EXPECT_TRUE(half_said.other_side_is_silent());
}

TEST_F(ListenerTest, ASilentStrangerIsDropped) {
  ControlListenerOptions options;
  options.handshake_timeout_ns = 1'000'000;
  AcceptingListener listener(options);
  Stranger silent(listener.port());
  const std::optional<Preface> answer = silent.hear_preface();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->refusal, Refusal::kTooSlow);
  EXPECT_TRUE(silent.hear(1).empty());
}

// So is one whose every byte is right, but who takes its time.
TEST_F(ListenerTest, ASlowPeerIsDropped) {
  ControlListenerOptions options;
  options.handshake_timeout_ns = 1'000'000;
  AcceptingListener listener(options);
  Stranger slow(listener.port());
  const std::vector<std::byte> words = first_words(secret());
  for (size_t at = 0; at + 1 < words.size(); ++at) {
    if (!slow.other_side_is_silent()) break;
    slow.say(std::span(words).subspan(at, 1));
    sleep_ns(100'000);
  }
  const std::optional<Preface> answer = slow.hear_preface();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->refusal, Refusal::kTooSlow);
}

// It has got as far as it gets without saying anything of its own.
TEST_F(ListenerTest, APlayedBackHandshakeIsDropped) {
  set_log_level(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  {
    AcceptingListener listener;
    std::vector<std::vector<std::byte>> recorded;
    {
      BareListener between;
      Connecting connecting(between.port(), secret());
      Stranger connector = between.accept();
      Stranger genuine(listener.port());
      // Two messages each; the listener's last one is short, and so the last that arrives.
      for (int i = 0; i < 2; ++i) {
        recorded.push_back(connector.hear(1));
        const std::vector<std::byte> rest = connector.hear_available();
        recorded.back().insert(recorded.back().end(), rest.begin(), rest.end());
        genuine.say(recorded.back());
        connector.say(genuine.hear(1));
        connector.say(genuine.hear_available());
      }
      ASSERT_TRUE(connecting.finish().ok());
    }
    Stranger stranger(listener.port());
    stranger.say(recorded[0]);
    const std::optional<Preface> welcome = stranger.hear_preface();
    ASSERT_TRUE(welcome.has_value());
    EXPECT_EQ(welcome->kind, PrefaceKind::kWelcome);
    stranger.say(recorded[1]);
    while (!stranger.hear(1).empty()) {
    }
    listener.stop();
    EXPECT_EQ(listener.accepted().size(), 1u);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("a recording of another handshake"));
}

TEST_F(ListenerTest, AStrangerThatStaysAfterItsRefusalIsClosed) {
  AcceptingListener listener;
  Stranger stranger(listener.port());
  stranger.say("garbage");
  ASSERT_TRUE(stranger.hear_preface().has_value());
  EXPECT_TRUE(stranger.hear(1).empty());
  // Talking on does not keep its place: the answer to more is a reset in the end.
  while (stranger.say("more")) sleep_ns(1'000'000);
}

TEST_F(ListenerTest, MoreSilentStrangersThanPlacesDoNotBlockAGenuinePeer) {
  ControlListenerOptions options;
  options.max_pending = 4;
  options.handshake_timeout_ns = kHourNs;
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret(), options);
  std::vector<Stranger> strangers;
  for (int i = 0; i < 10; ++i) {
    strangers.emplace_back(listener.port());
    ASSERT_TRUE(strangers.back().connected());
  }
  const Pair pair = connect_pair(listener);
  const std::optional<Preface> answer = strangers.front().hear_preface();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->refusal, Refusal::kCrowded);
}

// However far each of them has got.
TEST_F(ListenerTest, FiveHundredHalfOpenConnectionsDoNotBlockAGenuinePeer) {
  ControlListenerOptions options;
  options.handshake_timeout_ns = kHourNs;
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret(), options);
  const std::vector<std::byte> words = first_words(secret());
  std::vector<Stranger> strangers;
  for (size_t i = 0; i < 500; ++i) {
    strangers.emplace_back(listener.port());
    ASSERT_TRUE(strangers.back().connected());
    const size_t said = std::min(
        words.size(), std::array<size_t, 5>{0, 20, kPrefaceBytes, 100, words.size()}[i % 5]);
    if (said > 0) strangers.back().say(std::span(words).first(said));
  }
  Pair pair = connect_pair(listener);
  ASSERT_TRUE(pair.here.send(bytes_of("served")).ok());
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of("served"));
}

TEST_F(ListenerTest, ManyPeersConnectAtOnce) {
  constexpr int kPeers = 24;
  ControlListenerOptions options;
  options.max_pending = 4;
  options.handshake_timeout_ns = kHourNs;
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret(), options);
  std::vector<Thread> threads;
  threads.reserve(kPeers);
  std::atomic<int> good{0};
  for (int i = 0; i < kPeers; ++i) {
    threads.push_back(start_thread("peer", [&, i] {
      Result<ControlConnection> connection =
          ControlConnection::connect("127.0.0.1", listener.port(), secret(), kLongNs);
      if (!connection.ok()) return;
      if (!connection->send_value<int>(1, i).ok()) return;
      const Result<int> answer = connection->receive_value<int>(2, kLongNs);
      if (answer.ok() && *answer == 2 * i) ++good;
    }));
  }
  std::vector<Thread> servers;
  servers.reserve(kPeers);
  for (int i = 0; i < kPeers; ++i) {
    Result<ControlConnection> accepted = listener.accept(kLongNs);
    ASSERT_TRUE(accepted.ok()) << accepted.status().message();
    servers.push_back(start_thread(
        "server", [connection = std::make_shared<ControlConnection>(std::move(accepted).value())] {
          const Result<int> value = connection->receive_value<int>(1, kLongNs);
          ASSERT_TRUE(value.ok());
          EXPECT_TRUE(connection->send_value<int>(2, 2 * *value).ok());
        }));
  }
  threads.clear();
  servers.clear();
  EXPECT_EQ(good.load(), kPeers);
}

TEST_F(ListenerTest, AcceptTimesOut) {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  EXPECT_EQ(listener.accept(0).status().code(), StatusCode::kTimeout);
  EXPECT_EQ(listener.accept(2'000'000).status().code(), StatusCode::kTimeout);
}

// As in a loop with work of its own: the time in which nobody accepts is not the peer's.
TEST_F(ListenerTest, AHandshakeGoesOnHoweverSeldomTheListenerAccepts) {
  ControlListenerOptions options;
  options.handshake_timeout_ns = 100'000'000;
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret(), options);
  Connecting connecting(listener.port(), secret());
  bool accepted = false;
  for (const uint64_t end_ns = now_ns() + kLongNs / 2; !accepted && now_ns() < end_ns;) {
    accepted = listener.accept(0).ok();
    if (!accepted) sleep_ns(2 * static_cast<uint64_t>(options.handshake_timeout_ns));
  }
  EXPECT_TRUE(accepted);
  if (!accepted) {
    EXPECT_TRUE(listener.accept(kLongNs).ok());
  }
  EXPECT_TRUE(connecting.finish().ok());
}

TEST_F(ListenerTest, APortInUseIsNamed) {
  const ControlListener first = *ControlListener::listen("127.0.0.1", 0, secret());
  const Result<ControlListener> second =
      ControlListener::listen("127.0.0.1", first.port(), secret());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr("port in use"));
  EXPECT_THAT(second.status().message(), HasSubstr(first.name()));
}

TEST_F(ListenerTest, BadAddressesAreNamed) {
  // 192.0.2.0/24 is for documentation: no host has it.
  EXPECT_EQ(ControlListener::listen("192.0.2.1", 0, secret()).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(ControlListener::listen("", 0, secret()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ControlConnection::connect("no such host", 1, secret(), 0).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(ControlConnection::connect("127.0.0.1", 0, secret(), 0).status().code(),
            StatusCode::kInvalidArgument);
  ControlListenerOptions options;
  options.max_pending = 0;
  EXPECT_EQ(ControlListener::listen("127.0.0.1", 0, secret(), options).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(ListenerTest, RefusalsInTheLogAreLimited) {
  set_log_level(LogLevel::kWarning);
  constexpr uint64_t kLines = 5;  // every 5 s
  constexpr uint64_t kPeriodNs = 5'000'000'000;
  testing::internal::CaptureStderr();
  const uint64_t start_ns = now_ns();
  {
    AcceptingListener listener;
    for (int i = 0; i < 40; ++i) {
      Stranger stranger(listener.port());
      stranger.say("garbage\nverbena: error: a line that the stranger made up\n");
      EXPECT_TRUE(stranger.hear_preface().has_value());
    }
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const auto lines = static_cast<uint64_t>(std::count(log.begin(), log.end(), '\n'));
  EXPECT_GE(lines, 1u);
  EXPECT_LE(lines, kLines * (1 + (now_ns() - start_ns) / kPeriodNs));
  EXPECT_THAT(log, HasSubstr("not a Verbena peer"));
  EXPECT_THAT(log, testing::Not(HasSubstr("made up")));
}

TEST_F(ListenerTest, RandomStrangersAreSurvived) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  ControlListenerOptions options;
  options.max_pending = 8;
  AcceptingListener listener(options);
  const JobSecret key = secret();
  std::vector<Stranger> kept;
  for (int i = 0; i < 200; ++i) {
    Stranger stranger(listener.port());
    ASSERT_TRUE(stranger.connected());
    // Often a good start, cut or altered somewhere.
    std::vector<std::byte> bytes;
    if (random.below(3) != 0) bytes = first_words(key);
    const size_t more = random.below(200);
    for (size_t at = 0; at < more; ++at) bytes.push_back(static_cast<std::byte>(random.next()));
    if (!bytes.empty() && random.below(2) == 0) {
      bytes[random.below(bytes.size())] ^= static_cast<std::byte>(1 + random.below(255));
    }
    bytes.resize(random.below(bytes.size() + 1));
    stranger.say(bytes);
    switch (random.below(4)) {
      case 0:
        kept.push_back(std::move(stranger));
        break;
      case 1:
        stranger.reset_on_close();
        break;
      default:
        break;
    }
    if (i % 20 == 0) {
      EXPECT_TRUE(ControlConnection::connect("127.0.0.1", listener.port(), secret(), kLongNs).ok());
    }
  }
  listener.stop();
  EXPECT_EQ(listener.accepted().size(), 10u);
}

TEST_F(ListenerTest, RunningOutOfDescriptorsIsNamedAndPasses) {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  Stranger stranger(listener.port());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // No descriptor beyond those that are open.
  const int probe = dup(0);
  ASSERT_GE(probe, 0);
  close(probe);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(probe);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status status = listener.accept(kLongNs).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(status.message(), HasSubstr("ulimit -n"));
  EXPECT_TRUE(stranger.other_side_is_silent());
  connect_pair(listener);
}

// A messenger accepts again and again: its peers would wait for a connection that cannot come.
TEST_F(ListenerTest, APeerIsToldThatDescriptorsAreMissingForLong) {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  std::vector<Stranger> peers;
  for (int i = 0; i < 3; ++i) {
    peers.emplace_back(listener.port());
    peers.back().say(first_words(secret()));
  }
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int probe = dup(0);
  ASSERT_GE(probe, 0);
  close(probe);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(probe);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const uint64_t end_ns = now_ns() + kLongNs / 2;
  while (peers.back().other_side_is_silent() && now_ns() < end_ns) {
    EXPECT_FALSE(listener.accept(50'000'000).ok());
    sleep_ns(1'000'000);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  for (Stranger& peer : peers) {
    ASSERT_FALSE(peer.other_side_is_silent());
    const std::optional<Preface> answer = peer.hear_preface();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->refusal, Refusal::kNoDescriptors);
  }
  connect_pair(listener);
}

// The system asks for a descriptor before it looks whether anybody waits: that is no reason to send
// away the one who came.
TEST_F(ListenerTest, TheLastDescriptorIsEnoughForAPeer) {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // One for each side.
  const int first = dup(0);
  const int second = dup(0);
  ASSERT_GT(second, first);
  close(first);
  close(second);
  rlimit two = before;
  two.rlim_cur = static_cast<rlim_t>(second) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &two), 0);
  std::optional<Result<ControlConnection>> connected;
  Thread thread = start_thread("connector", [&] {
    connected = ControlConnection::connect("127.0.0.1", listener.port(), secret(), kLongNs);
  });
  const Result<ControlConnection> accepted = listener.accept(kLongNs);
  thread.join();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(accepted.ok()) << accepted.status().message();
  EXPECT_TRUE(connected->ok()) << connected->status().message();
}

}  // namespace
}  // namespace verbena
