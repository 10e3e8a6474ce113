/* What libsmc-preload.so of smc-tools does, as far as the tests need it: stream sockets of IPv4 become
 * sockets of AF_SMC. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int socket(int family, int type, int protocol)
{
	if (family == AF_INET && (type & 0xf) == SOCK_STREAM &&
	    (protocol == 0 || protocol == IPPROTO_TCP)) {
		family = 43;
		protocol = 0;
	}
	return syscall(SYS_socket, family, type, protocol);
}
