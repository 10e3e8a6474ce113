// A Go program that listens or connects as Go programs do; for the tests of SMC-R.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

func main() {
	what, address := os.Args[1], os.Args[2]
	if what == "serve" {
		listener, err := net.Listen("tcp4", address)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		for {
			connection, err := listener.Accept()
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			go io.Copy(connection, connection)
		}
	}
	for try := 0; try < 50; try++ {
		connection, err := net.Dial("tcp4", address)
		if err != nil {
			time.Sleep(200 * time.Millisecond)
			continue
		}
		connection.Write([]byte("hello"))
		answer := make([]byte, 5)
		io.ReadFull(connection, answer)
		fmt.Println(string(answer))
		time.Sleep(time.Hour)
	}
}
