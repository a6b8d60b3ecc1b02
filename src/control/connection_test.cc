#include "verbena/connection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>

#include "src/base/runtime.h"
#include "src/control/peers_for_test.h"

namespace verbena {
namespace {

using testing::HasSubstr;

class ConnectionTest : public QuietLogTest {};

TEST_F(ConnectionTest, CarriesFramesInOrderBothWays) {
  Pair pair = connect_pair();
  ASSERT_TRUE(pair.here.send(bytes_of("first")).ok());
  ASSERT_TRUE(pair.here.send({}).ok());
  ASSERT_TRUE(pair.here.send(bytes_of("third")).ok());
  ASSERT_TRUE(pair.there.send(bytes_of("back")).ok());
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of("first"));
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of(""));
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of("third"));
  EXPECT_EQ(*pair.here.receive(kLongNs), bytes_of("back"));
  EXPECT_THAT(pair.here.peer_name(), testing::StartsWith("127.0.0.1:"));
}

TEST_F(ConnectionTest, CarriesTheLargestFrameAndRefusesALargerOne) {
  Pair pair = connect_pair();
  std::vector<std::byte> frame(kMaxControlFrameBytes);
  Random random(1);
  for (std::byte& byte : frame) byte = static_cast<std::byte>(random.next());
  Thread sender = start_thread("sender", [&] { EXPECT_TRUE(pair.here.send(frame).ok()); });
  EXPECT_EQ(*pair.there.receive(kLongNs), frame);
  sender.join();
  frame.push_back(std::byte{0});
  const Status status = pair.here.send(frame);
  EXPECT_EQ(status.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(status.message(), HasSubstr("1048577"));
  EXPECT_THAT(status.message(), HasSubstr("1048576"));
  // What was not sent did not break anything.
  EXPECT_TRUE(pair.here.send(bytes_of("still fine")).ok());
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of("still fine"));
}

TEST_F(ConnectionTest, ReceiveTimesOutAndKeepsAFrameThatArrivedInPart) {
  RawPair pair = connect_raw();
  EXPECT_EQ(pair.connection.receive(0).status().code(), StatusCode::kTimeout);
  // In one record, and in two.
  for (const size_t cut : {size_t{0}, size_t{7}}) {
    const std::vector<std::byte> frame = frame_of("abcdef");
    std::vector<std::byte> bytes;
    if (cut > 0) bytes = pair.raw.encrypt(std::span(frame).first(cut));
    const std::vector<std::byte> rest = pair.raw.encrypt(std::span(frame).subspan(cut));
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    for (size_t at = 0; at + 1 < bytes.size(); ++at) {
      pair.raw.wire().say(std::span(bytes).subspan(at, 1));
      EXPECT_EQ(pair.connection.receive(1'000'000).status().code(), StatusCode::kTimeout);
    }
    pair.raw.wire().say(std::span(bytes).last(1));
    EXPECT_EQ(*pair.connection.receive(kLongNs), bytes_of("abcdef"));
  }
}

// Nothing of the next one is taken from the socket: or a poll() for it would wait for ever.
TEST_F(ConnectionTest, ItsDescriptorIsReadableExactlyWhileThereAreFrames) {
  Pair pair = connect_pair();
  const auto readable = [&pair](int64_t timeout_ns) {
    pollfd descriptor{pair.there.descriptor(), POLLIN, 0};
    return poll_until({&descriptor, 1}, Deadline(timeout_ns)) == 1;
  };
  EXPECT_FALSE(readable(0));
  ASSERT_TRUE(pair.here.send(bytes_of("first")).ok());
  ASSERT_TRUE(pair.here.send({}).ok());
  ASSERT_TRUE(pair.here.send(std::vector<std::byte>(40'000)).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(readable(kLongNs));
    EXPECT_TRUE(pair.there.receive(kLongNs).ok());
  }
  EXPECT_FALSE(readable(0));
}

TEST_F(ConnectionTest, ASenderWhosePeerDoesNotReadTimesOut) {
  RawPair pair = connect_raw();
  const std::vector<std::byte> frame(kMaxControlFrameBytes);
  Status status;
  // Until the buffers of both sockets are full.
  for (int i = 0; i < 1000 && status.ok(); ++i) status = pair.connection.send(frame, 1'000'000);
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_EQ(pair.connection.send({}).code(), StatusCode::kTimeout);
}

TEST_F(ConnectionTest, APeerThatReadsLateIsNotTakenForADeadHost) {
  Pair pair = connect_pair();
  const std::vector<std::byte> frame(kMaxControlFrameBytes);
  constexpr int kFrames = 16;  // more than the buffers of both sockets
  Status sent;
  Thread sender = start_thread("sender", [&] {
    for (int i = 0; i < kFrames && sent.ok(); ++i) sent = pair.here.send(frame);
  });
  sleep_ns(kHostSilenceLimitNs + 2'000'000'000);
  EXPECT_FALSE(pair.there.peer_closed());
  for (int i = 0; i < kFrames; ++i) {
    const Result<std::vector<std::byte>> received = pair.there.receive(kLongNs);
    ASSERT_TRUE(received.ok()) << received.status().message();
    EXPECT_EQ(received->size(), frame.size());
  }
  sender.join();
  EXPECT_TRUE(sent.ok()) << sent.message();
}

// Of a frame that the peer's host does not take as a whole, though send() did not have to wait.
TEST_F(ConnectionTest, WhatWasSentWaitsForAPeerThatReadsLate) {
  for (const size_t frame_bytes : {size_t{200 * 1024}, kMaxControlFrameBytes}) {
    Pair pair = connect_pair();
    Status sent;
    // Where the system's buffers are small it does wait.
    Thread sender = start_thread("sender", [&] {
      sent = pair.here.send(std::vector<std::byte>(frame_bytes));
      EXPECT_EQ(pair.here.receive(0).status().code(), StatusCode::kTimeout);
      EXPECT_FALSE(pair.here.peer_closed());
    });
    sleep_ns(kHostSilenceLimitNs + 2'000'000'000);
    const Result<std::vector<std::byte>> received = pair.there.receive(kLongNs);
    sender.join();
    ASSERT_TRUE(sent.ok()) << sent.message();
    ASSERT_TRUE(received.ok()) << received.status().message();
    EXPECT_EQ(received->size(), frame_bytes);
    // The limit for a dead host is back.
    EXPECT_FALSE(pair.here.peer_closed());
    int limit_ms = 0;
    socklen_t size = sizeof(limit_ms);
    getsockopt(pair.here.descriptor(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, &size);
    EXPECT_EQ(limit_ms, kHostSilenceLimitNs / 1'000'000);
  }
}

TEST_F(ConnectionTest, ExchangesValuesOfBothSides) {
  struct Endpoint {
    uint32_t queue_pair_number;
    uint64_t address;
  };
  Pair pair = connect_pair();
  std::optional<Result<Endpoint>> from_here;
  Thread thread = start_thread("there", [&] {
    from_here = pair.there.exchange<Endpoint>(7, {2, 20}, kLongNs);
  });
  const Result<Endpoint> from_there = pair.here.exchange<Endpoint>(7, {1, 10}, kLongNs);
  thread.join();
  ASSERT_TRUE(from_there.ok()) << from_there.status().message();
  EXPECT_EQ(from_there->queue_pair_number, 2u);
  EXPECT_EQ(from_there->address, 20u);
  ASSERT_TRUE(from_here->ok());
  EXPECT_EQ((*from_here)->address, 10u);
}

TEST_F(ConnectionTest, AValueOfAnotherTypeIsAnError) {
  {
    Pair pair = connect_pair();
    ASSERT_TRUE(pair.here.send_value<uint32_t>(1, 5).ok());
    const Result<uint32_t> value = pair.there.receive_value<uint32_t>(2, kLongNs);
    EXPECT_EQ(value.status().code(), StatusCode::kProtocolViolation);
    EXPECT_THAT(value.status().message(), HasSubstr("type 1 and 4 bytes, expected was type 2"));
    EXPECT_FALSE(pair.there.receive(0).ok());
  }
  {
    Pair pair = connect_pair();
    ASSERT_TRUE(pair.here.send_value<uint32_t>(1, 5).ok());
    EXPECT_EQ(pair.there.receive_value<uint64_t>(1, kLongNs).status().code(),
              StatusCode::kProtocolViolation);
  }
  {
    Pair pair = connect_pair();
    ASSERT_TRUE(pair.here.send(bytes_of("ab")).ok());
    EXPECT_EQ(pair.there.receive_value<uint64_t>(1, kLongNs).status().code(),
              StatusCode::kProtocolViolation);
  }
}

TEST_F(ConnectionTest, AClosedPeerIsNoticedAndItsLastFrameIsNotLost) {
  Pair pair = connect_pair();
  EXPECT_FALSE(pair.there.peer_closed());
  ASSERT_TRUE(pair.here.send(bytes_of("last words")).ok());
  EXPECT_FALSE(pair.there.peer_closed());
  { const ControlConnection closed = std::move(pair.here); }
  while (!pair.there.peer_closed()) sleep_ns(100'000);
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of("last words"));
  const Status status = pair.there.receive(kLongNs).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("closed the connection"));
  EXPECT_TRUE(pair.there.peer_closed());
}

TEST_F(ConnectionTest, SendingToAPeerThatIsGoneIsAnErrorAndNoSignal) {
  Pair pair = connect_pair();
  { const ControlConnection closed = std::move(pair.here); }
  Status status;
  while (status.ok()) status = pair.there.send(bytes_of("anybody there?"));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(pair.there.peer_closed());
}

TEST_F(ConnectionTest, APeerThatResetsTheConnectionIsGone) {
  RawPair pair = connect_raw();
  pair.raw.wire().reset_on_close();
  pair.raw.wire().close();
  EXPECT_EQ(pair.connection.receive(kLongNs).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(pair.connection.peer_closed());
}

// As a process that dies, or as somebody on the way who cuts the connection; where does not matter.
TEST_F(ConnectionTest, APeerThatDoesNotCloseTheConnectionIsNamed) {
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{7}, size_t{30}}) {
    RawPair pair = connect_raw();
    pair.raw.wire().say(
        std::span<const std::byte>(pair.raw.encrypt(frame_of("some text"))).first(cut));
    pair.raw.wire().close();
    const Status status = pair.connection.receive(kLongNs).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("is gone: it did not close the connection")) << cut;
    EXPECT_EQ(pair.connection.receive(kLongNs).status().message(), status.message());
  }
}

TEST_F(ConnectionTest, APeerThatClosesTheConnectionIsNotGone) {
  RawPair pair = connect_raw();
  pair.raw.wire().say(pair.raw.close_notify());
  const Status status = pair.connection.receive(kLongNs).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("closed the connection"));
}

TEST_F(ConnectionTest, HangingUpEndsBothSidesAndLosesNoFrame) {
  Pair pair = connect_pair();
  ASSERT_TRUE(pair.here.send(bytes_of("before")).ok());
  ASSERT_TRUE(pair.there.send(bytes_of("too")).ok());
  pair.here.hang_up();
  while (!pair.there.peer_closed()) sleep_ns(100'000);
  EXPECT_TRUE(pair.here.peer_closed());
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of("before"));
  EXPECT_THAT(pair.there.receive(kLongNs).status().message(), HasSubstr("closed the connection"));
  EXPECT_EQ(*pair.here.receive(kLongNs), bytes_of("too"));
  EXPECT_THAT(pair.here.receive(kLongNs).status().message(), HasSubstr("this side has closed"));
  EXPECT_THAT(pair.here.send({}).message(), HasSubstr("this side has closed"));
  pair.here.hang_up();
}

// A child that lets go of what it inherited, as when it runs destructors, says nothing in the
// parent's name.
TEST_F(ConnectionTest, AChildThatClosesItsCopyDoesNotEndItsParentsConnection) {
  Pair pair = connect_pair();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    { const ControlConnection closed = std::move(pair.here); }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_FALSE(pair.there.peer_closed());
  ASSERT_TRUE(pair.here.send(bytes_of("still here")).ok());
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of("still here"));
}

TEST_F(ConnectionTest, AnOversizeFrameIsRefusedBeforeItsBytesAreWaitedFor) {
  for (uint32_t announced : {uint32_t{kMaxControlFrameBytes} + 1, uint32_t{0x7fffffff}, ~0u}) {
    RawPair pair = connect_raw();
    pair.raw.say(frame_of(announced, ""));
    const Status status = pair.connection.receive(kLongNs).status();
    EXPECT_EQ(status.code(), StatusCode::kProtocolViolation);
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(announced)));
    EXPECT_FALSE(pair.connection.receive(0).ok());
  }
}

TEST_F(ConnectionTest, TwoFramesInOneRecordAreRefused) {
  RawPair pair = connect_raw();
  std::vector<std::byte> frames = frame_of("first");
  const std::vector<std::byte> second = frame_of("second");
  frames.insert(frames.end(), second.begin(), second.end());
  pair.raw.say(frames);
  const Status status = pair.connection.receive(kLongNs).status();
  EXPECT_EQ(status.code(), StatusCode::kProtocolViolation);
  EXPECT_THAT(status.message(), HasSubstr("more than a frame at a time"));
}

// What the receiver of `bytes` says, which end there.
Status received_of(std::span<const std::byte> bytes) {
  RawPair pair = connect_raw();
  pair.raw.wire().say(bytes);
  pair.raw.wire().close();
  return pair.connection.receive(kLongNs).status();
}

TEST_F(ConnectionTest, BytesThatAreNotOfTheConnectionAreRefused) {
  for (const std::vector<std::byte>& bytes :
       {bytes_of("HTTP/1.1 400 Bad Request\r\n"), frame_of("not encrypted"),
        bytes_of("\x17\x03\x03 not encrypted"), connect_raw().raw.encrypt(frame_of("other"))}) {
    const Status status = received_of(bytes);
    EXPECT_FALSE(status.ok());
    // Some look like the beginning of a long record.
    if (status.code() == StatusCode::kUnavailable) continue;
    EXPECT_EQ(status.code(), StatusCode::kProtocolViolation);
    EXPECT_THAT(status.message(), HasSubstr("do not verify"));
  }
  EXPECT_EQ(received_of(bytes_of("HTTP/1.1 400 Bad Request\r\n")).code(),
            StatusCode::kProtocolViolation);
  EXPECT_EQ(received_of(connect_raw().raw.encrypt(frame_of("other"))).code(),
            StatusCode::kProtocolViolation);
}

TEST_F(ConnectionTest, NoAlteredByteOfAFrameArrives) {
  for (size_t byte = 0, count = 1; byte < count; ++byte) {
    RawPair pair = connect_raw();
    std::vector<std::byte> bytes = pair.raw.encrypt(frame_of("frame"));
    count = bytes.size();
    bytes[byte] ^= static_cast<std::byte>(1 << (byte % 8));
    pair.raw.wire().say(bytes);
    // The length of the record, when it got longer: all of it is waited for.
    const bool longer = byte == 3 || byte == 4;
    if (longer) pair.raw.wire().close();
    const Status status = pair.connection.receive(kLongNs).status();
    EXPECT_EQ(status.code(), longer && status.code() != StatusCode::kProtocolViolation
                                 ? StatusCode::kUnavailable
                                 : StatusCode::kProtocolViolation)
        << byte;
    if (longer) continue;
    EXPECT_THAT(status.message(), HasSubstr("do not verify")) << byte;
    EXPECT_EQ(pair.connection.receive(kLongNs).status().message(), status.message());
    EXPECT_FALSE(pair.connection.send({}).ok());
    // The peer learns that what it sent did not arrive.
    std::byte more{};
    size_t got = 0;
    EXPECT_EQ(pair.raw.hear({&more, 1}, &got), TlsStream::Outcome::kFailed) << byte;
  }
}

TEST_F(ConnectionTest, FramesOutOfTurnDoNotArrive) {
  {
    RawPair pair = connect_raw();
    const std::vector<std::byte> first = pair.raw.encrypt(frame_of("first"));
    pair.raw.wire().say(first);
    pair.raw.wire().say(first);
    EXPECT_EQ(*pair.connection.receive(kLongNs), bytes_of("first"));
    EXPECT_EQ(pair.connection.receive(kLongNs).status().code(), StatusCode::kProtocolViolation);
  }
  {
    RawPair pair = connect_raw();
    const std::vector<std::byte> lost = pair.raw.encrypt(frame_of("lost"));
    pair.raw.say(frame_of("second"));
    EXPECT_EQ(pair.connection.receive(kLongNs).status().code(), StatusCode::kProtocolViolation);
  }
}

TEST_F(ConnectionTest, FramesAreNotReadableOnTheirWay) {
  RawPair pair = connect_raw();
  const std::vector<std::byte> text = bytes_of("the number of a queue pair");
  ASSERT_TRUE(pair.connection.send(text).ok());
  const std::vector<std::byte> seen = pair.raw.wire().hear(text.size() + 8);
  EXPECT_EQ(std::search(seen.begin(), seen.end(), text.begin(), text.end()), seen.end());
}

// What the system's administrator has set for other programs: each line alone would keep the two
// sides from agreeing.
TEST_F(ConnectionTest, SettingsOfOtherProgramsDoNotMatter) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string path = testing::TempDir() + "verbena-openssl-" + std::to_string(getpid());
  std::ofstream(path) << "openssl_conf = all\n"
                         "[all]\nssl_conf = tls\n"
                         "[tls]\nsystem_default = every_program\n"
                         "[every_program]\n"
                         "MaxProtocol = TLSv1.2\n"
                         "Ciphersuites = TLS_CHACHA20_POLY1305_SHA256\n"
                         "CipherString = ALL:@SECLEVEL=5\n"
                         "Groups = P-521\n"
                         "SignatureAlgorithms = RSA+SHA512\n"
                         "VerifyMode = Require\n";
  const char* const before = std::getenv("OPENSSL_CONF");
  const std::optional<std::string> kept =
      before != nullptr ? std::optional<std::string>(before) : std::nullopt;
  setenv("OPENSSL_CONF", path.c_str(), 1);
  EXPECT_EXIT(
      {
        SSL_CTX* const other = SSL_CTX_new(TLS_method());
        if (SSL_CTX_get_max_proto_version(other) != TLS1_2_VERSION) _exit(2);
        Pair pair = connect_pair();
        _exit(pair.here.send(bytes_of("agreed")).ok() && pair.there.receive(kLongNs).ok() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  if (kept.has_value()) {
    setenv("OPENSSL_CONF", kept->c_str(), 1);
  } else {
    unsetenv("OPENSSL_CONF");
  }
  std::filesystem::remove(path);
}

TEST_F(ConnectionTest, AListenerOfAnotherVersionIsNamedToTheConnector) {
  for (const uint16_t version : {1, 9}) {
    BareListener listener;
    Connecting connecting(listener.port(), secret());
    Stranger raw = listener.accept();
    raw.hear(kPrefaceBytes);
    raw.say(encode_refusal(version, Refusal::kWrongVersion));
    const Status refusal = connecting.refusal();
    EXPECT_EQ(refusal.code(), StatusCode::kProtocolViolation);
    EXPECT_THAT(refusal.message(),
                HasSubstr(fmt::format(
                    "speaks version {} of the control protocol, this is version 2", version)));
  }
}

TEST_F(ConnectionTest, AnotherProgramsPortIsNamed) {
  BareListener listener;
  Connecting connecting(listener.port(), secret());
  Stranger raw = listener.accept();
  raw.say("SSH-2.0-OpenSSH_9.2\r\n");
  const Status refusal = connecting.refusal();
  EXPECT_EQ(refusal.code(), StatusCode::kProtocolViolation);
  EXPECT_THAT(refusal.message(), HasSubstr("not a Verbena peer"));
  EXPECT_THAT(refusal.message(), HasSubstr("in use by another program"));
}

TEST_F(ConnectionTest, ConnectingWhereNobodyListensTimesOutWithTheReason) {
  const QuietPort quiet;
  const Status status =
      ControlConnection::connect("127.0.0.1", quiet.port(), secret(), 500'000'000).status();
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("Connection refused"));
}

TEST_F(ConnectionTest, ConnectingToAListenerThatHasEndedFailsAtOnce) {
  const QuietPort quiet;
  const Status status =
      ControlConnection::connect("127.0.0.1", quiet.port(), secret(), /*timeout_ns=*/-1,
                                 ControlConnection::IfNobodyListens::kFail)
          .status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("Connection refused"));
}

TEST_F(ConnectionTest, ConnectingToASilentPortTimesOutWithTheReason) {
  const BareListener silent;
  const Status status =
      ControlConnection::connect("127.0.0.1", silent.port(), secret(), 500'000'000).status();
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("did not answer"));
}

TEST_F(ConnectionTest, ConnectingWaitsForTheListener) {
  const QuietPort quiet;
  std::optional<Result<ControlConnection>> connected;
  Thread thread = start_thread("connector", [&] {
    connected = ControlConnection::connect("127.0.0.1", quiet.port(), secret(), kLongNs);
  });
  // However this race goes, the connection must come about; most often a few tries fail before.
  sleep_ns(20'000'000);
  Result<ControlListener> listener = ControlListener::listen("127.0.0.1", quiet.port(), secret());
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  EXPECT_TRUE(listener->accept(kLongNs).ok());
  thread.join();
  EXPECT_TRUE(connected->ok()) << connected->status().message();
}

TEST_F(ConnectionTest, ConnectingOutlastsAListenerThatDiesDuringTheHandshake) {
  BareListener listener;
  Connecting connecting(listener.port(), secret());
  for (int i = 0; i < 3; ++i) listener.accept().hear(kPrefaceBytes);
  // After all but its last word.
  {
    const JobSecret key = secret();
    Stranger wire = listener.accept();
    TappedHandshake dies(ControlRole::kListener, key);
    dies.take(wire.hear(first_words(key).size()));
    wire.say(dies.next_output());
    wire.hear(1);
  }
  const RawPeer raw(listener.accept());
  const Result<ControlConnection> connected = connecting.finish();
  EXPECT_TRUE(connected.ok()) << connected.status().message();
}

TEST_F(ConnectionTest, SpeaksIpv6) {
  Result<ControlListener> listener = ControlListener::listen("::1", 0, secret());
  if (!listener.ok()) GTEST_SKIP() << "no IPv6 here: " << listener.status().message();
  EXPECT_THAT(listener->name(), testing::StartsWith("[::1]:"));
  Pair pair = connect_pair(*listener, "::1");
  EXPECT_THAT(pair.there.peer_name(), testing::StartsWith("[::1]:"));
  connect_pair(*listener, "[::1]");
}

TEST_F(ConnectionTest, FindsTheRightAddressOfAName) {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  connect_pair(listener, "localhost");
}

TEST_F(ConnectionTest, DescriptorsAreNotInheritedAndSmallFramesLeaveAtOnce) {
  const Pair pair = connect_pair();
  for (const ControlConnection* connection : {&pair.here, &pair.there}) {
    EXPECT_TRUE(fcntl(connection->descriptor(), F_GETFD) & FD_CLOEXEC);
    int no_delay = 0;
    socklen_t size = sizeof(no_delay);
    getsockopt(connection->descriptor(), IPPROTO_TCP, TCP_NODELAY, &no_delay, &size);
    EXPECT_NE(no_delay, 0);
  }
}

TEST_F(ConnectionTest, SignalsDoNotEndAWait) {
  struct sigaction action {};
  struct sigaction before {};
  static std::atomic<int> signals{0};
  action.sa_handler = [](int) { ++signals; };
  sigaction(SIGUSR1, &action, &before);
  Pair pair = connect_pair();
  const pthread_t waiting = pthread_self();
  Thread thread = start_thread("signals", [&] {
    for (int i = 0; i < 20; ++i) {
      pthread_kill(waiting, SIGUSR1);
      sleep_ns(1'000'000);
    }
    EXPECT_TRUE(pair.there.send(bytes_of("after the signals")).ok());
  });
  EXPECT_EQ(*pair.here.receive(kLongNs), bytes_of("after the signals"));
  thread.join();
  EXPECT_GT(signals.load(), 0);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(ConnectionTest, RandomFramesAreSurvived) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 50; ++round) {
    RawPair pair = connect_raw();
    const size_t good_frames = random.below(4);
    for (size_t i = 0; i < good_frames; ++i) {
      pair.raw.say(frame_of(std::string(random.below(300), 'x')));
    }
    // Of one who holds the secret, or of one who writes to the wire.
    std::vector<std::byte> garbage(1 + random.below(100));
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(random.next());
    if (random.below(2) == 0) {
      // Above the limit, or too short for a length.
      if (garbage.size() > 3) garbage[3] |= std::byte{1};
      pair.raw.say(garbage);
    } else {
      pair.raw.wire().say(garbage);
    }
    pair.raw.wire().close();
    Status status;
    size_t received = 0;
    while (status.ok()) {
      const Result<std::vector<std::byte>> frame = pair.connection.receive(kLongNs);
      status = frame.status();
      if (frame.ok()) ++received;
    }
    EXPECT_NE(status.code(), StatusCode::kTimeout);
    EXPECT_EQ(received, good_frames);
  }
}

}  // namespace
}  // namespace verbena
