// The connection manager by its commands, as librdmacm writes them. Both sides are in this process:
// they reach each other by the same sockets as those of two processes do.
#include "src/device/soft/cm/connection_manager.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_user_cm.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "src/base/device_settings.h"
#include "src/base/file_descriptor.h"
#include "src/base/sanitizer.h"
#include "src/device/soft/cm/channel_calls.h"
#include "src/device/soft/cm/port_files.h"
#include "src/device/soft/no_descriptors_for_test.h"
#include "src/device/soft/rnic.h"

namespace verbena::soft::cm {
namespace {

constexpr int kPatienceMs = 60'000;

sockaddr_in6 ipv4(const char* text, uint16_t port = 0) {
  sockaddr_in6 address{};
  auto* ip = reinterpret_cast<sockaddr_in*>(&address);
  ip->sin_family = AF_INET;
  ip->sin_port = htons(port);
  ip->sin_addr.s_addr = inet_addr(text);
  return address;
}

sockaddr_in6 ipv6(const in6_addr& ip, uint16_t port = 0) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  address.sin6_addr = ip;
  return address;
}

uint16_t port_of(const sockaddr_in6& address) { return ntohs(address.sin6_port); }

unsigned seed() {
  const char* given = std::getenv("VERBENA_SEED");
  return given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : 1;
}

// An event channel, and commands on it. Identifiers' user words are their test's.
class Events {
 public:
  explicit Events(int flags = O_RDWR | O_CLOEXEC) : fd_(open_channel(flags)) { EXPECT_GE(fd_, 0); }
  ~Events() { end(); }
  void end() {
    if (fd_ < 0) return;
    close(fd_);
    fd_ = -1;
    channel_closed();
  }
  int fd() const { return fd_; }

  // 0, or errno.
  template <typename Body>
  int command(uint32_t number, const Body& body, uint16_t out_bytes = 0) const {
    struct {
      rdma_ucm_cmd_hdr header;
      Body body;
    } __attribute__((packed)) whole{{number, sizeof(Body), out_bytes}, body};
    const ssize_t written = write_command(fd_, &whole, sizeof(whole));
    if (written == static_cast<ssize_t>(sizeof(whole))) return 0;
    return written < 0 ? errno : -1;
  }

  uint32_t create(uint64_t user_word, uint16_t space = RDMA_PS_TCP) const {
    rdma_ucm_create_id_resp response{};
    rdma_ucm_create_id body{};
    body.uid = user_word;
    body.ps = space;
    body.response = reinterpret_cast<uint64_t>(&response);
    EXPECT_EQ(command(RDMA_USER_CM_CMD_CREATE_ID, body, sizeof(response)), 0);
    return response.id;
  }
  int destroy(uint32_t id, uint32_t* reported = nullptr) const {
    rdma_ucm_destroy_id_resp response{};
    rdma_ucm_destroy_id body{};
    body.id = id;
    body.response = reinterpret_cast<uint64_t>(&response);
    const int error = command(RDMA_USER_CM_CMD_DESTROY_ID, body, sizeof(response));
    if (reported != nullptr) *reported = response.events_reported;
    return error;
  }
  // From another channel to this one.
  int migrate(uint32_t id, const Events& from, uint32_t* reported = nullptr) const {
    rdma_ucm_migrate_resp response{.events_reported = 1};
    rdma_ucm_migrate_id body{};
    body.id = id;
    body.fd = static_cast<uint32_t>(from.fd());
    body.response = reinterpret_cast<uint64_t>(&response);
    const int error = command(RDMA_USER_CM_CMD_MIGRATE_ID, body, sizeof(response));
    if (reported != nullptr) *reported = response.events_reported;
    return error;
  }
  int bind(uint32_t id, const sockaddr_in6& address) const {
    rdma_ucm_bind_ip body{};
    body.id = id;
    body.addr = address;
    return command(RDMA_USER_CM_CMD_BIND_IP, body);
  }
  int listen(uint32_t id, uint32_t backlog = 16) const {
    return command(RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen{id, backlog});
  }
  int resolve(uint32_t id, const sockaddr_in6& target) const {
    rdma_ucm_resolve_ip body{};
    body.id = id;
    body.dst_addr = target;
    body.timeout_ms = 2000;
    return command(RDMA_USER_CM_CMD_RESOLVE_IP, body);
  }
  int resolve_route(uint32_t id) const {
    return command(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route{id, 2000});
  }
  rdma_ucm_query_route_resp query(uint32_t id) const {
    rdma_ucm_query_route_resp response{};
    rdma_ucm_query body{};
    body.id = id;
    body.response = reinterpret_cast<uint64_t>(&response);
    EXPECT_EQ(command(RDMA_USER_CM_CMD_QUERY_ROUTE, body, sizeof(response)), 0);
    return response;
  }
  int connect(uint32_t id, uint32_t queue_pair, const std::string& data = "") const {
    rdma_ucm_connect body{};
    body.id = id;
    fill(body.conn_param, queue_pair, data);
    return command(RDMA_USER_CM_CMD_CONNECT, body);
  }
  int accept(uint32_t id, uint64_t user_word, uint32_t queue_pair,
             const std::string& data = "") const {
    rdma_ucm_accept body{};
    body.id = id;
    body.uid = user_word;
    fill(body.conn_param, queue_pair, data);
    return command(RDMA_USER_CM_CMD_ACCEPT, body);
  }
  int confirm(uint32_t id) const {
    rdma_ucm_accept body{};
    body.id = id;
    return command(RDMA_USER_CM_CMD_ACCEPT, body);
  }
  int reject(uint32_t id, const std::string& data = "", uint8_t reason = 0) const {
    rdma_ucm_reject body{};
    body.id = id;
    body.reason = reason;
    body.private_data_len = static_cast<uint8_t>(data.size());
    std::copy(data.begin(), data.end(), body.private_data);
    return command(RDMA_USER_CM_CMD_REJECT, body);
  }
  int disconnect(uint32_t id) const {
    return command(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{id});
  }
  int attributes(uint32_t id, uint32_t state, ib_uverbs_qp_attr& response) const {
    rdma_ucm_init_qp_attr body{};
    body.id = id;
    body.qp_state = state;
    body.response = reinterpret_cast<uint64_t>(&response);
    return command(RDMA_USER_CM_CMD_INIT_QP_ATTR, body, sizeof(response));
  }
  int set_option(uint32_t id, uint32_t option, int value) const {
    rdma_ucm_set_option body{};
    body.id = id;
    body.level = RDMA_OPTION_ID;
    body.optname = option;
    body.optval = reinterpret_cast<uint64_t>(&value);
    body.optlen = sizeof(value);
    return command(RDMA_USER_CM_CMD_SET_OPTION, body);
  }

  bool readable(int timeout_ms = 0) const {
    pollfd end{.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&end, 1, timeout_ms) == 1;
  }
  int get(rdma_ucm_event_resp& event) const {
    rdma_ucm_get_event body{};
    body.response = reinterpret_cast<uint64_t>(&event);
    return command(RDMA_USER_CM_CMD_GET_EVENT, body, sizeof(event));
  }
  // The next event, which has to be of this type.
  rdma_ucm_event_resp next(EventType type) const {
    rdma_ucm_event_resp event{};
    if (!readable(kPatienceMs)) {
      ADD_FAILURE() << "no event of type " << static_cast<int>(type);
      return event;
    }
    EXPECT_EQ(get(event), 0);
    EXPECT_EQ(event.event, static_cast<uint32_t>(type)) << "status " << event.status;
    return event;
  }

  uint32_t listener(uint64_t user_word, uint16_t* port, uint16_t space = RDMA_PS_TCP,
                    uint32_t backlog = 16) const {
    const uint32_t id = create(user_word, space);
    EXPECT_EQ(bind(id, ipv4("0.0.0.0")), 0);
    EXPECT_EQ(listen(id, backlog), 0);
    *port = port_of(query(id).src_addr);
    EXPECT_NE(*port, 0);
    return id;
  }
  uint32_t resolved(uint64_t user_word, const sockaddr_in6& target,
                    uint16_t space = RDMA_PS_TCP) const {
    const uint32_t id = create(user_word, space);
    EXPECT_EQ(resolve(id, target), 0);
    EXPECT_EQ(next(EventType::kAddressResolved).uid, user_word);
    EXPECT_EQ(resolve_route(id), 0);
    EXPECT_EQ(next(EventType::kRouteResolved).uid, user_word);
    return id;
  }

 private:
  static void fill(rdma_ucm_conn_param& parameters, uint32_t queue_pair, const std::string& data) {
    parameters.qp_num = queue_pair;
    parameters.valid = 1;
    parameters.retry_count = 5;
    parameters.rnr_retry_count = 6;
    parameters.responder_resources = 3;
    parameters.initiator_depth = 4;
    parameters.private_data_len = static_cast<uint8_t>(data.size());
    std::copy(data.begin(), data.end(), parameters.private_data);
  }

  int fd_;
};

struct Connected {
  uint32_t listener;
  uint32_t active;
  uint32_t passive;
};

constexpr uint64_t kListener = 100;
constexpr uint64_t kActive = 200;
constexpr uint64_t kPassive = 300;

// One that listens, and one that may ask it for a connection.
struct Sides {
  Events server;
  Events client;
  uint16_t port = 0;
  uint32_t listener = server.listener(kListener, &port);
  uint32_t active = client.resolved(kActive, ipv4("127.0.0.1", port));
};

Connected connect_both(const Events& server, const Events& client) {
  Connected ids{};
  uint16_t port = 0;
  ids.listener = server.listener(kListener, &port);
  ids.active = client.resolved(kActive, ipv4("127.0.0.1", port));
  EXPECT_EQ(client.connect(ids.active, 17), 0);
  ids.passive = server.next(EventType::kConnectRequest).id;
  EXPECT_EQ(server.accept(ids.passive, kPassive, 18), 0);
  client.next(EventType::kConnectResponse);
  EXPECT_EQ(client.confirm(ids.active), 0);
  server.next(EventType::kEstablished);
  return ids;
}

// rdma_write_cm_event() of librdmacm 60 and newer.
struct WrittenEvent {
  uint32_t id;
  uint32_t reserved;
  uint32_t event;
  uint32_t status;
  uint64_t argument;
  uint32_t rest[80];  // of the union
};
constexpr uint32_t kWriteEvent = 24;

TEST(ConnectionManager, ProgramsWriteEventsOfTheirOwn) {
  const Events events;
  const uint32_t id = events.create(kActive);
  for (const EventType type : {EventType::kUser, EventType::kInternal}) {
    WrittenEvent written{.id = id,
                         .reserved = 0,
                         .event = static_cast<uint32_t>(type),
                         .status = 7,
                         .argument = 0x1122334455667788,
                         .rest = {}};
    EXPECT_EQ(events.command(kWriteEvent, written), 0);
    const auto got = events.next(type);
    EXPECT_EQ(got.uid, kActive);
    EXPECT_EQ(got.id, id);
    EXPECT_EQ(got.status, 7u);
    uint64_t argument = 0;
    std::memcpy(&argument, &got.param, sizeof(argument));
    EXPECT_EQ(argument, written.argument);
  }
  EXPECT_FALSE(events.readable());
  uint32_t reported = 0;
  EXPECT_EQ(events.destroy(id, &reported), 0);
  EXPECT_EQ(reported, 2u);
}

TEST(ConnectionManager, RefusesEventsThatAreNotThePrograms) {
  const Events events;
  const Events others;
  const uint32_t id = events.create(kActive);
  const auto write = [id](const Events& channel, EventType type) {
    WrittenEvent written{};
    written.id = id;
    written.event = static_cast<uint32_t>(type);
    return channel.command(kWriteEvent, written);
  };
  EXPECT_EQ(write(events, EventType::kEstablished), EINVAL);
  EXPECT_EQ(write(others, EventType::kUser), EINVAL);
  EXPECT_EQ(events.command(kWriteEvent, id), EINVAL) << "a command that ends early";
  EXPECT_EQ(events.destroy(id), 0);
  EXPECT_EQ(write(events, EventType::kUser), ENOENT);
  EXPECT_FALSE(events.readable() || others.readable());
}

TEST(ConnectionManager, RefusesEventsOfARequestThatIsNotAccepted) {
  Sides sides;
  auto& [server, client, port, listener, active] = sides;
  ASSERT_EQ(client.connect(active, 17), 0);
  WrittenEvent written{};
  written.id = server.next(EventType::kConnectRequest).id;
  written.event = static_cast<uint32_t>(EventType::kUser);
  EXPECT_EQ(server.command(kWriteEvent, written), EINVAL);
  EXPECT_FALSE(server.readable());
}

TEST(ConnectionManager, ConnectsBothSidesWithWhatTheOtherGave) {
  Sides sides;
  auto& [server, client, port, listener, active] = sides;
  const auto route = client.query(active);
  EXPECT_NE(route.node_guid, 0u);
  EXPECT_EQ(route.num_paths, 1u);
  EXPECT_EQ(route.port_num, 1);
  EXPECT_NE(port_of(route.src_addr), 0);
  EXPECT_EQ(port_of(route.dst_addr), port);

  ib_uverbs_qp_attr attributes{};
  EXPECT_EQ(client.attributes(active, IBV_QPS_INIT, attributes), 0);
  EXPECT_EQ(client.attributes(active, IBV_QPS_RTR, attributes), EINVAL) << "there is no peer yet";
  ASSERT_EQ(client.connect(active, 0x1111, "hello"), 0);

  const auto request = server.next(EventType::kConnectRequest);
  EXPECT_EQ(request.uid, kListener);
  EXPECT_NE(request.id, listener);
  EXPECT_EQ(request.param.conn.private_data_len, 56) << "what a request has room for";
  EXPECT_STREQ(reinterpret_cast<const char*>(request.param.conn.private_data), "hello");
  EXPECT_EQ(request.param.conn.qp_num, 0x1111u);
  EXPECT_EQ(request.param.conn.responder_resources, 4) << "the peer's initiator depth";
  EXPECT_EQ(request.param.conn.initiator_depth, 3);
  EXPECT_EQ(request.param.conn.retry_count, 5);
  const auto passive_route = server.query(request.id);
  EXPECT_EQ(port_of(passive_route.src_addr), port);
  EXPECT_EQ(port_of(passive_route.dst_addr), port_of(route.src_addr));

  ASSERT_EQ(server.accept(request.id, kPassive, 0x2222, "welcome"), 0);
  const auto response = client.next(EventType::kConnectResponse);
  EXPECT_EQ(response.uid, kActive);
  EXPECT_EQ(response.param.conn.private_data_len, 196);
  EXPECT_STREQ(reinterpret_cast<const char*>(response.param.conn.private_data), "welcome");
  EXPECT_EQ(response.param.conn.qp_num, 0x2222u);

  ib_uverbs_qp_attr own{};
  ib_uverbs_qp_attr peers{};
  ASSERT_EQ(client.attributes(active, IBV_QPS_RTR, own), 0);
  ASSERT_EQ(server.attributes(request.id, IBV_QPS_RTS, peers), 0);
  EXPECT_EQ(own.dest_qp_num, 0x2222u);
  EXPECT_EQ(own.rq_psn, peers.sq_psn);
  EXPECT_EQ(peers.retry_cnt, 5);
  EXPECT_EQ(peers.rnr_retry, 6);
  EXPECT_EQ(peers.max_rd_atomic, 4);
  EXPECT_EQ(own.max_dest_rd_atomic, 4);

  ASSERT_EQ(client.confirm(active), 0);
  EXPECT_EQ(server.next(EventType::kEstablished).uid, kPassive);

  ASSERT_EQ(client.disconnect(active), 0);
  EXPECT_EQ(client.next(EventType::kDisconnected).uid, kActive);
  EXPECT_EQ(server.next(EventType::kDisconnected).uid, kPassive);
  EXPECT_EQ(server.disconnect(request.id), 0);
  client.next(EventType::kTimewaitExit);
  server.next(EventType::kTimewaitExit);
  uint32_t reported = 0;
  EXPECT_EQ(client.destroy(active, &reported), 0);
  EXPECT_EQ(reported, 5u);
  EXPECT_EQ(server.destroy(listener, &reported), 0);
  EXPECT_EQ(reported, 1u) << "the request counts at the listener";
}

TEST(ConnectionManager, RefusesWhereNobodyListens) {
  Sides sides;
  auto& [server, client, port, listener, active] = sides;
  EXPECT_EQ(server.destroy(listener), 0);
  ASSERT_EQ(client.connect(active, 1), 0);
  EXPECT_EQ(client.next(EventType::kRejected).status, kRejectInvalidService);
}

// As long as a test needs, however busy the machine is.
class PatientRequests {
 public:
  PatientRequests() { set(3'600'000'000'000); }
  ~PatientRequests() { set(500'000'000); }

 private:
  static void set(uint64_t ns) { ConnectionManager::get().value()->set_listener_patience(ns); }
};

TEST(ConnectionManager, RequestsMeetAListenerThatComesAMomentLater) {
  const PatientRequests patient;
  for (const uint16_t space : {RDMA_PS_TCP, RDMA_PS_UDP}) {
    Events server;
    Events client;
    uint16_t port = 0;
    const uint32_t former = server.listener(kListener, &port, space);
    EXPECT_EQ(server.destroy(former), 0);
    const uint32_t active = client.resolved(kActive, ipv4("127.0.0.1", port), space);
    ASSERT_EQ(client.connect(active, 1), 0);
    EXPECT_FALSE(client.readable(20));
    const uint32_t listener = server.create(kListener, space);
    EXPECT_EQ(server.bind(listener, ipv4("0.0.0.0", port)), 0);
    EXPECT_EQ(server.listen(listener), 0);
    EXPECT_EQ(server.next(EventType::kConnectRequest).uid, kListener);
  }
}

TEST(ConnectionManager, RequestsThatNobodyCouldHearAreRefusedAtOnce) {
  const PatientRequests patient;
  constexpr uint16_t kNobodysPort = 7;
  for (const uint16_t space : {RDMA_PS_TCP, RDMA_PS_UDP}) {
    const Events client;
    const uint32_t active = client.resolved(kActive, ipv4("127.0.0.1", kNobodysPort), space);
    ASSERT_EQ(client.connect(active, 1), 0);
    if (space == RDMA_PS_TCP) {
      EXPECT_EQ(client.next(EventType::kRejected).status, kRejectInvalidService);
    } else {
      EXPECT_EQ(client.next(EventType::kUnreachable).status, kDatagramNoService);
    }
  }
}

TEST(ConnectionManager, RequestsWaitAsLongAsAnotherProcessCouldListen) {
  const PatientRequests patient;
  Result<Registry> other = Registry::open();  // with a place as that of another process
  ASSERT_TRUE(other.ok()) << other.status().message();
  ASSERT_TRUE(other->join({}).ok());
  const Events client;
  const uint32_t active = client.resolved(kActive, ipv4("127.0.0.1", 7));
  ASSERT_EQ(client.connect(active, 1), 0);
  EXPECT_FALSE(client.readable(20));
  other->leave();
  EXPECT_EQ(client.next(EventType::kRejected).status, kRejectInvalidService);
}

TEST(ConnectionManager, ARequestWithoutAListenerCanBeGivenUp) {
  const PatientRequests patient;
  Sides sides;
  auto& [server, client, port, listener, active] = sides;
  EXPECT_EQ(server.destroy(listener), 0);
  ASSERT_EQ(client.connect(active, 1), 0);
  EXPECT_EQ(client.destroy(active), 0);
  EXPECT_FALSE(client.readable(20));
}

TEST(ConnectionManager, RejectsWithReasonAndData) {
  Sides sides;
  auto& [server, client, port, listener, active] = sides;
  ASSERT_EQ(client.connect(active, 1), 0);
  const auto request = server.next(EventType::kConnectRequest);
  EXPECT_EQ(server.reject(request.id, "", 7), EINVAL) << "no reason of a program";
  ASSERT_EQ(server.reject(request.id, "no"), 0);
  const auto rejected = client.next(EventType::kRejected);
  EXPECT_EQ(rejected.status, kRejectByConsumer);
  EXPECT_EQ(rejected.param.conn.private_data_len, 148);
  EXPECT_STREQ(reinterpret_cast<const char*>(rejected.param.conn.private_data), "no");
  EXPECT_EQ(server.accept(request.id, kPassive, 1), EINVAL);
}

TEST(ConnectionManager, TakesNoMorePrivateDataThanAMessageHasRoomFor) {
  Sides sides;
  auto& [server, client, port, listener, active] = sides;
  EXPECT_EQ(client.connect(active, 1, std::string(57, 'x')), EINVAL);
  ASSERT_EQ(client.connect(active, 1, std::string(56, 'x')), 0);
  const auto request = server.next(EventType::kConnectRequest);
  EXPECT_EQ(server.accept(request.id, kPassive, 1, std::string(197, 'x')), EINVAL);
  EXPECT_EQ(server.accept(request.id, kPassive, 1, std::string(196, 'x')), 0);
}

TEST(ConnectionManager, HoldsPortsAsSocketsDo) {
  Events events;
  const uint32_t first = events.create(1);
  ASSERT_EQ(events.bind(first, ipv4("127.0.0.1")), 0);
  const uint16_t port = port_of(events.query(first).src_addr);
  EXPECT_EQ(events.bind(first, ipv4("127.0.0.1")), EINVAL) << "bound already";
  EXPECT_EQ(events.bind(events.create(2), ipv4("127.0.0.1", port)), EADDRINUSE);
  EXPECT_EQ(events.bind(events.create(3), ipv4("0.0.0.0", port)), EADDRINUSE);
  EXPECT_EQ(events.bind(events.create(4), ipv6(in6addr_any, port)), EADDRINUSE);
  EXPECT_EQ(events.bind(events.create(5), ipv4("127.0.0.2", port)), 0) << "another address";
  EXPECT_EQ(events.bind(events.create(6, RDMA_PS_UDP), ipv4("127.0.0.1", port)), 0)
      << "another port space";
  EXPECT_EQ(events.bind(events.create(7), ipv4("240.0.0.1")), EADDRNOTAVAIL);
  EXPECT_EQ(events.destroy(first), 0);
  EXPECT_EQ(events.bind(events.create(8), ipv4("127.0.0.1", port)), 0) << "it is free again";
}

// A process that holds a slot and listens, but that this one cannot look at.
class ForeignListener {
 public:
  ForeignListener(const ProcessRecord& record, size_t record_bytes) : slot_(record.slot) {
    const int fd = openat(directory_fd(), name().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    file_ = FileDescriptor(fd);
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    EXPECT_EQ(pwrite(fd, &record, record_bytes, 0), static_cast<ssize_t>(record_bytes));
    EXPECT_EQ(fcntl(fd, F_OFD_SETLK, &lock), 0);
    EXPECT_EQ(ports_.bind(bound_), 0);
    EXPECT_EQ(ports_.listen(bound_), 0);
  }
  ForeignListener(const ForeignListener&) = delete;
  ForeignListener& operator=(const ForeignListener&) = delete;
  ~ForeignListener() {
    ports_.release(bound_);
    unlinkat(directory_fd(), name().c_str(), 0);
  }
  uint16_t port() const { return bound_.endpoint.port; }

  static ProcessRecord own_record() {
    const Rnic& rnic = *Rnic::get().value();
    ProcessRecord record = rnic.registry().find(rnic.slot()).value();
    record.slot = 900;
    return record;
  }

 private:
  static int directory_fd() { return Rnic::existing()->registry().directory_fd(); }
  std::string name() const { return "soft0." + std::to_string(slot_); }

  const uint32_t slot_;
  FileDescriptor file_;
  PortFiles ports_{
      directory_fd(), {.slot = slot_, .pid = 7}, [](const PortOwner&) { return true; }};
  PortWish bound_{.space = RDMA_PS_TCP, .id = 1, .endpoint = {.family = AF_INET}};
};

TEST(ConnectionManager, PortsOfProcessesThatCannotBeLookedAtStayTaken) {
  struct Foreign {
    const char* what;
    ProcessRecord record = ForeignListener::own_record();
    size_t record_bytes = sizeof(ProcessRecord);
    const char* line;
  };
  std::array<Foreign, 3> others = {Foreign{.what = "a newer layout", .line = "uses layout"},
                                   {.what = "a short layout", .line = "uses layout"},
                                   {.what = "a PID namespace", .line = "another PID namespace"}};
  ++others[0].record.version;
  others[1].record_bytes = offsetof(ProcessRecord, pid_namespace);
  ++others[2].record.pid_namespace;
  std::string log;
  for (const Foreign& foreign : others) {
    SCOPED_TRACE(foreign.what);
    const ForeignListener listener(foreign.record, foreign.record_bytes);
    const Events events;
    EXPECT_EQ(events.bind(events.create(1), ipv4("0.0.0.0", listener.port())), EADDRINUSE);
    const uint32_t active = events.resolved(kActive, ipv4("127.0.0.1", listener.port()));
    testing::internal::CaptureStderr();
    EXPECT_EQ(events.connect(active, 1), 0);
    EXPECT_EQ(events.next(EventType::kRejected).status, kRejectInvalidService);
    // Once for each cause.
    log += testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find(foreign.line), std::string::npos) << log;
    EXPECT_EQ(events.bind(events.create(2), ipv4("0.0.0.0", listener.port())), EADDRINUSE);
  }
}

TEST(ConnectionManager, PortsStayTakenWhereNoDescriptorIsFree) {
  Result<Registry> other = Registry::open();
  ASSERT_TRUE(other.ok()) << other.status().message();
  const Result<uint32_t> slot = other->join({});
  ASSERT_TRUE(slot.ok()) << slot.status().message();
  const ProcessRecord record = other->find(*slot).value();
  PortFiles ports(Rnic::get().value()->registry().directory_fd(),
                  {*slot, record.pid, record.start_time_ticks},
                  [](const PortOwner&) { return true; });
  PortWish bound{.space = RDMA_PS_TCP, .id = 1, .endpoint = {.family = AF_INET}};
  ASSERT_EQ(ports.bind(bound), 0);
  const Events events;
  const uint32_t id = events.create(1);
  {
    const soft::test::FewDescriptors one(1);  // for the port's file, and none for the owner's
    EXPECT_EQ(events.bind(id, ipv4("0.0.0.0", bound.endpoint.port)), EADDRINUSE);
  }
  EXPECT_EQ(events.bind(id, ipv4("0.0.0.0", bound.endpoint.port)), EADDRINUSE);
  other->leave();
  EXPECT_EQ(events.bind(id, ipv4("0.0.0.0", bound.endpoint.port)), 0);
}

TEST(ConnectionManager, ARequestThatFailsForWantOfDescriptorsIsTold) {
  const Sides sides;
  testing::internal::CaptureStderr();
  {
    const soft::test::FewDescriptors none(0);
    EXPECT_EQ(sides.client.connect(sides.active, 1), 0);
    EXPECT_EQ(sides.client.next(EventType::kRejected).status, kRejectInvalidService);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("ulimit -n"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  const uint32_t again = sides.client.resolved(kActive, ipv4("127.0.0.1", sides.port));
  EXPECT_EQ(sides.client.connect(again, 1), 0);
  EXPECT_EQ(sides.server.next(EventType::kConnectRequest).uid, kListener);
}

TEST(ConnectionManager, SharesPortsThatAllWantToShare) {
  Events events;
  std::array<uint32_t, 2> ids{};
  uint16_t port = 0;
  for (uint32_t& id : ids) {
    id = events.create(1);
    ASSERT_EQ(events.set_option(id, RDMA_OPTION_ID_REUSEADDR, 1), 0);
    ASSERT_EQ(events.bind(id, ipv4("127.0.0.1", port)), 0);
    port = port_of(events.query(id).src_addr);
  }
  EXPECT_EQ(events.listen(ids[0]), EADDRINUSE) << "a listener has its port alone";
  EXPECT_EQ(events.destroy(ids[1]), 0);
  EXPECT_EQ(events.listen(ids[0]), 0);
  EXPECT_EQ(events.set_option(ids[0], RDMA_OPTION_ID_REUSEADDR, 1), EINVAL);
  const uint32_t late = events.create(1);
  ASSERT_EQ(events.set_option(late, RDMA_OPTION_ID_REUSEADDR, 1), 0);
  EXPECT_EQ(events.bind(late, ipv4("127.0.0.1", port)), EADDRINUSE);
}

// As one of a stopped process that has its lock.
TEST(ConnectionManager, APortWhoseFileWasHeldIsReleasedLater) {
  const Events events;
  uint16_t port = 0;
  const uint32_t listener = events.listener(kListener, &port);
  const int directory_fd = Rnic::existing()->registry().directory_fd();
  {
    const std::string name = "cm.port.0106." + std::to_string(port);
    const FileDescriptor held(openat(directory_fd, name.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(flock(held.get(), LOCK_EX), 0);
    EXPECT_EQ(events.destroy(listener), 0);
  }
  PortFiles others(directory_fd, {.slot = 900}, [](const PortOwner&) { return true; });
  PortWish wanted{.space = RDMA_PS_TCP, .id = 1, .endpoint = {.family = AF_INET, .port = port}};
  int error = EADDRINUSE;
  for (int i = 0; i < kPatienceMs && error == EADDRINUSE; ++i) {
    error = others.bind(wanted);
    poll(nullptr, 0, 1);
  }
  EXPECT_EQ(error, 0);
  others.release(wanted);
}

TEST(ConnectionManager, TakesOptionsOfPortsAfterTheBind) {
  Events events;
  const uint32_t first = events.create(1);
  ASSERT_EQ(events.bind(first, ipv6(in6addr_any)), 0);
  const uint16_t port = port_of(events.query(first).src_addr);
  const uint32_t second = events.create(1);
  ASSERT_EQ(events.set_option(second, RDMA_OPTION_ID_REUSEADDR, 1), 0);
  EXPECT_EQ(events.bind(second, ipv6(in6addr_any, port)), EADDRINUSE);
  EXPECT_EQ(events.bind(events.create(1), ipv4("0.0.0.0", port)), EADDRINUSE);
  EXPECT_EQ(events.set_option(first, RDMA_OPTION_ID_REUSEADDR, 1), 0);
  EXPECT_EQ(events.set_option(first, RDMA_OPTION_ID_REUSEADDR, 0), EINVAL) << "it is shared";
  EXPECT_EQ(events.bind(second, ipv6(in6addr_any, port)), 0);
  EXPECT_EQ(events.destroy(second), 0);
  EXPECT_EQ(events.set_option(first, RDMA_OPTION_ID_AFONLY, 1), 0);
  EXPECT_EQ(events.bind(events.create(1), ipv4("0.0.0.0", port)), 0);
  EXPECT_EQ(events.listen(first), 0);
  EXPECT_EQ(events.set_option(first, RDMA_OPTION_ID_AFONLY, 0), EINVAL);
}

TEST(ConnectionManager, ListensToIpv4ByIpv6sWildcard) {
  Events server;
  Events client;
  const uint32_t listener = server.create(kListener);
  ASSERT_EQ(server.bind(listener, ipv6(in6addr_any)), 0);
  ASSERT_EQ(server.listen(listener), 0);
  const uint16_t port = port_of(server.query(listener).src_addr);
  for (const sockaddr_in6& target : {ipv4("127.0.0.1", port), ipv6(in6addr_loopback, port)}) {
    const uint32_t active = client.resolved(kActive, target);
    ASSERT_EQ(client.connect(active, 1), 0);
    const auto request = server.next(EventType::kConnectRequest);
    EXPECT_EQ(server.query(request.id).src_addr.sin6_family, target.sin6_family);
  }
}

TEST(ConnectionManager, FailsToResolveAnotherHost) {
  Events events;
  const uint32_t id = events.create(kActive);
  ASSERT_EQ(events.resolve(id, ipv4("240.0.0.1", 1)), 0);
  const auto error = events.next(EventType::kAddressError);
  EXPECT_EQ(static_cast<int32_t>(error.status), -EHOSTUNREACH);
  EXPECT_EQ(events.resolve_route(id), EINVAL);
}

TEST(ConnectionManager, RefusesMoreThanTheBacklog) {
  Events server;
  Events client;
  uint16_t port = 0;
  server.listener(kListener, &port, RDMA_PS_TCP, 1);
  const uint32_t first = client.resolved(1, ipv4("127.0.0.1", port));
  const uint32_t second = client.resolved(2, ipv4("127.0.0.1", port));
  const uint32_t third = client.resolved(3, ipv4("127.0.0.1", port));
  ASSERT_EQ(client.connect(first, 1), 0);
  ASSERT_TRUE(server.readable(kPatienceMs));
  ASSERT_EQ(client.connect(second, 1), 0);
  EXPECT_EQ(client.next(EventType::kRejected).uid, 2u);
  server.next(EventType::kConnectRequest);
  ASSERT_EQ(client.connect(third, 1), 0);
  server.next(EventType::kConnectRequest);
}

TEST(ConnectionManager, EndsConnectionsOfAClosedChannel) {
  Events server;
  Events client;
  connect_both(server, client);
  client.end();
  EXPECT_EQ(server.next(EventType::kDisconnected).uid, kPassive);
}

TEST(ConnectionManager, DestroyedIdentifiersLeaveNoEvents) {
  Events events(O_RDWR | O_CLOEXEC | O_NONBLOCK);
  const uint32_t id = events.create(kActive);
  ASSERT_EQ(events.resolve(id, ipv4("127.0.0.1", 1)), 0);
  EXPECT_TRUE(events.readable());
  uint32_t reported = 1;
  ASSERT_EQ(events.destroy(id, &reported), 0);
  EXPECT_EQ(reported, 0u);
  EXPECT_FALSE(events.readable());
  rdma_ucm_event_resp event{};
  EXPECT_EQ(events.get(event), EAGAIN);
  EXPECT_EQ(events.destroy(id), ENOENT);
}

TEST(ConnectionManager, DestroyingTheListenerRefusesWhatNobodyHasSeen) {
  Sides sides;
  auto& [server, client, port, listener, active] = sides;
  ASSERT_EQ(client.connect(active, 1), 0);
  ASSERT_TRUE(server.readable(kPatienceMs));
  ASSERT_EQ(server.destroy(listener), 0);
  EXPECT_EQ(client.next(EventType::kRejected).status, kRejectByConsumer);
  EXPECT_FALSE(server.readable());
}

TEST(ConnectionManager, GivingUpEndsThePeersRequest) {
  Sides sides;
  auto& [server, client, port, listener, active] = sides;
  ASSERT_EQ(client.connect(active, 1), 0);
  const auto request = server.next(EventType::kConnectRequest);
  ASSERT_EQ(client.destroy(active), 0);
  // The end may come before or after the answer.
  if (server.accept(request.id, kPassive, 1) == 0) server.next(EventType::kRejected);
}

TEST(ConnectionManager, MovesIdentifiersWithTheirEvents) {
  Events from(O_RDWR | O_CLOEXEC | O_NONBLOCK);
  Events to;
  const uint32_t id = from.create(kActive);
  ASSERT_EQ(from.resolve(id, ipv4("127.0.0.1", 1)), 0);
  uint32_t reported = 1;
  ASSERT_EQ(to.migrate(id, from, &reported), 0);
  EXPECT_EQ(reported, 0u);
  EXPECT_FALSE(from.readable());
  EXPECT_EQ(to.next(EventType::kAddressResolved).uid, kActive);
  EXPECT_EQ(from.resolve_route(id), EINVAL) << "it is of another channel";
  EXPECT_EQ(to.resolve_route(id), 0);
}

TEST(ConnectionManager, RequestsMoveWithTheirListener) {
  Events from;
  Events to;
  Events client;
  uint16_t port = 0;
  const uint32_t listener = from.listener(kListener, &port);
  const uint32_t active = client.resolved(kActive, ipv4("127.0.0.1", port));
  ASSERT_EQ(client.connect(active, 0x1111), 0);
  ASSERT_TRUE(from.readable(kPatienceMs)) << "the request, which nobody fetches there";
  ASSERT_EQ(to.migrate(listener, from), 0);
  from.end();
  const auto request = to.next(EventType::kConnectRequest);
  EXPECT_EQ(to.accept(request.id, kPassive, 0x2222), 0);
  EXPECT_EQ(client.next(EventType::kConnectResponse).param.conn.qp_num, 0x2222u);
}

TEST(ConnectionManager, WaitsForEvents) {
  Events events;
  const uint32_t id = events.create(kActive);
  std::thread waits([&] {
    rdma_ucm_event_resp event{};
    EXPECT_EQ(events.get(event), 0);
    EXPECT_EQ(event.uid, kActive);
  });
  EXPECT_EQ(events.resolve(id, ipv4("127.0.0.1", 1)), 0);
  waits.join();
}

TEST(ConnectionManager, ResolvesServicesOfDatagrams) {
  Events server;
  Events client;
  uint16_t port = 0;
  server.listener(kListener, &port, RDMA_PS_UDP);
  const uint32_t active = client.resolved(kActive, ipv4("127.0.0.1", port), RDMA_PS_UDP);
  ib_uverbs_qp_attr attributes{};
  ASSERT_EQ(client.attributes(active, IBV_QPS_INIT, attributes), 0);
  EXPECT_EQ(attributes.qkey, 0x01234567u);
  ASSERT_EQ(client.connect(active, 0x1111, "hello"), 0);
  const auto request = server.next(EventType::kConnectRequest);
  EXPECT_EQ(request.param.ud.private_data_len, 180);
  EXPECT_STREQ(reinterpret_cast<const char*>(request.param.ud.private_data), "hello");
  ASSERT_EQ(server.accept(request.id, kPassive, 0x2222, "welcome"), 0);
  const auto answer = client.next(EventType::kEstablished);
  EXPECT_EQ(answer.param.ud.qp_num, 0x2222u);
  EXPECT_EQ(answer.param.ud.qkey, 0x01234567u);
  EXPECT_EQ(answer.param.ud.private_data_len, 136);
  EXPECT_STREQ(reinterpret_cast<const char*>(answer.param.ud.private_data), "welcome");

  const uint32_t refused = client.resolved(kActive, ipv4("127.0.0.1", port), RDMA_PS_UDP);
  ASSERT_EQ(client.connect(refused, 1), 0);
  ASSERT_EQ(server.reject(server.next(EventType::kConnectRequest).id), 0);
  EXPECT_EQ(client.next(EventType::kUnreachable).status, kDatagramRejected);
}

TEST(ConnectionManager, JoinsGroups) {
  Events events;
  const uint32_t id = events.create(kActive, RDMA_PS_UDP);
  ASSERT_EQ(events.bind(id, ipv4("127.0.0.1")), 0);
  rdma_ucm_create_id_resp response{};
  rdma_ucm_join_ip_mcast body{};
  body.id = id;
  body.uid = 7;
  body.addr = ipv4("239.1.2.3");
  body.response = reinterpret_cast<uint64_t>(&response);
  ASSERT_EQ(events.command(RDMA_USER_CM_CMD_JOIN_IP_MCAST, body, sizeof(response)), 0);
  const auto joined = events.next(EventType::kMulticastJoin);
  EXPECT_EQ(joined.uid, 7u);
  EXPECT_EQ(joined.param.ud.qp_num, 0xffffffu);
  const std::array<uint8_t, 16> group = {0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 1,
                                         0,    0,    0,    0,    15,   1,    2, 3};
  EXPECT_EQ(std::memcmp(joined.param.ud.ah_attr.grh.dgid, group.data(), group.size()), 0);
  EXPECT_GE(joined.param.ud.ah_attr.dlid, 0xc000);
  rdma_ucm_destroy_id_resp left{};
  rdma_ucm_destroy_id leave{};
  leave.id = response.id;
  leave.response = reinterpret_cast<uint64_t>(&left);
  ASSERT_EQ(events.command(RDMA_USER_CM_CMD_LEAVE_MCAST, leave, sizeof(left)), 0);
  EXPECT_EQ(left.events_reported, 1u);
}

TEST(ConnectionManager, ChannelsAreTheParentsAfterAFork) {
  Events events;
  const uint32_t id = events.create(kActive);
  const pid_t child = fork();
  if (child == 0) {
    // It finds none of them, and may not end them either.
    const bool found = is_channel(events.fd());
    close(events.fd());
    _exit(found ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(events.bind(id, ipv4("127.0.0.1")), 0);
}

// Programs make an address of a path, global where its hop limit says so: Ethernet takes no other.
TEST(ConnectionManager, PathsOfEthernetHaveAGlobalRoute) {
  if (VERBENA_THREAD_SANITIZER) GTEST_SKIP() << "ThreadSanitizer starts no threads after a fork()";
  const auto hop_limit_of = [](const char* link_layer) {
    const pid_t child = fork();
    if (child == 0) {
      setenv(kLinkLayerVariable, link_layer, 1);
      const Events events;
      const uint32_t id = events.resolved(kActive, ipv4("127.0.0.1", 7), RDMA_PS_UDP);
      _exit(events.query(id).ib_route[0].hop_limit);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(hop_limit_of("ethernet"), kHopLimit);
  EXPECT_EQ(hop_limit_of("infiniband"), 1);
}

TEST(ConnectionManager, AnswersWrongCommandsWithErrors) {
  Events events(O_RDWR | O_CLOEXEC | O_NONBLOCK);
  events.create(1);
  EXPECT_EQ(write_command(events.fd(), nullptr, 64), -1);
  EXPECT_EQ(errno, EFAULT);
  rdma_ucm_create_id body{};
  body.ps = RDMA_PS_TCP;
  body.response = 8;  // nothing lies there
  EXPECT_EQ(events.command(RDMA_USER_CM_CMD_CREATE_ID, body, sizeof(uint32_t)), EFAULT);
  EXPECT_EQ(events.command(RDMA_USER_CM_CMD_CREATE_ID, body, 0), ENOSPC);
  EXPECT_EQ(events.command(RDMA_USER_CM_CMD_JOIN_MCAST + 1, body), EINVAL);
  EXPECT_EQ(events.command(RDMA_USER_CM_CMD_GET_OPTION, body), ENOSYS);

  std::minstd_rand random(seed());
  for (int i = 0; i < 20'000; ++i) {
    std::array<uint32_t, 96> words{};
    for (uint32_t& word : words) {
      const unsigned draw = random();
      word = draw % 4 == 0 ? draw : draw % 7;
    }
    rdma_ucm_cmd_hdr header{};
    header.cmd = random() % (RDMA_USER_CM_CMD_JOIN_MCAST + 2);
    header.in = static_cast<uint16_t>(random() % sizeof(words));
    header.out = static_cast<uint16_t>(random() % 512);
    std::memcpy(words.data(), &header, sizeof(header));
    // Addresses of answers are wild, and never the test's own memory.
    words[3] = words[5] = 0;
    words[2] %= 4096;
    words[4] %= 4096;
    const ssize_t written = write_command(events.fd(), words.data(), random() % sizeof(words));
    EXPECT_LE(written, static_cast<ssize_t>(sizeof(words)));
  }
  const uint32_t id = events.create(2);
  EXPECT_EQ(events.bind(id, ipv4("127.0.0.1")), 0);
}

// What no right peer sends, by way of the socket: others' connections go on.
TEST(ConnectionManager, SurvivesHostilePeers) {
  Events server;
  Events client;
  const Connected ids = connect_both(server, client);
  const uint32_t slot = Rnic::existing()->slot();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = "/proc/self/fd/" +
                           std::to_string(Rnic::existing()->registry().directory_fd()) + "/" +
                           connection_socket_name(slot);
  std::copy(path.begin(), path.end(), address.sun_path);
  std::minstd_rand random(seed());
  for (int i = 0; i < 300; ++i) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    for (int j = 0; j < 20; ++j) {
      Message message{};
      auto* bytes = reinterpret_cast<uint8_t*>(&message);
      for (size_t k = 0; k < sizeof(message); ++k) bytes[k] = static_cast<uint8_t>(random() % 3);
      message.magic = kMessageMagic;
      message.type = static_cast<MessageType>(random() % 10);
      message.port_space = RDMA_PS_TCP;
      message.target_id = random() % 2 == 0 ? ids.listener : random() % (ids.passive + 2);
      message.source_id = random() % (ids.passive + 2);
      const sockaddr_in6 local = ipv4("127.0.0.1", 1);
      if (random() % 2 == 0) std::memcpy(message.source_address.data(), &local, sizeof(local));
      if (random() % 2 == 0) std::memcpy(message.target_address.data(), &local, sizeof(local));
      const size_t size_bytes = random() % 8 == 0 ? random() % 400 : sizeof(message);
      std::array<uint8_t, 400> packet{};
      std::memcpy(packet.data(), &message, sizeof(message));
      if (send(fd, packet.data(), size_bytes, MSG_NOSIGNAL) < 0) break;  // it was sent away
    }
    close(fd);
  }
  EXPECT_EQ(client.disconnect(ids.active), 0);
  EXPECT_EQ(client.next(EventType::kDisconnected).uid, kActive);
  // Requests that looked right come first.
  for (;;) {
    rdma_ucm_event_resp event{};
    ASSERT_TRUE(server.readable(kPatienceMs));
    ASSERT_EQ(server.get(event), 0);
    if (event.event == static_cast<uint32_t>(EventType::kDisconnected)) break;
    EXPECT_EQ(event.event, static_cast<uint32_t>(EventType::kConnectRequest));
  }
}

}  // namespace
}  // namespace verbena::soft::cm
